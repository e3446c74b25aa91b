"""HTTP's Idempotency-Key through kill -9 and at several proxies: a request is stored once, and answered as it was."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.cluster.senders import stored
from tests.support.mqtt.paho_client import PahoClient
from tests.support.process.ports import PORTS

pytestmark = pytest.mark.slow

KILLS = 2
AT_ONCE = 8
ADDRESS = "kill/once/n"


def test_requests_that_are_sent_again_after_a_kill_are_stored_once(new_gateway):
    gateway, answers, begun = new_gateway(), {}, 0
    for number_of_kills in range(KILLS + 1):
        gateway.start()
        again = list(range(begun))  # the answered too: their answers may have been lost on the way
        gone = threading.Event()

        def post(number, gone=gone):
            if gone.is_set():
                return
            try:
                answer = client.post(
                    f"{gateway.url}/topics/{ADDRESS}", content=str(number), headers={"idempotency-key": f'"{number}"'}
                )
            except httpx.HTTPError:
                gone.set()
                return
            assert answer.status_code == 201, answer.text
            before = answers.setdefault(number, answer.json())
            assert answer.json() == before

        with httpx.Client(timeout=90) as client, ThreadPoolExecutor(AT_ONCE) as senders:
            list(senders.map(post, again))
            assert len(answers) == begun
            if number_of_kills == KILLS:
                break
            fresh = [senders.submit(post, number) for number in range(begun, begun + 400)]
            while sum(one.done() for one in fresh) < 30 * (number_of_kills + 1):
                gone.wait(0.001)
            gateway.kill()
            begun += sum(one.done() for one in fresh) + AT_ONCE  # as many as may have been under way
    found = Counter(stored(gateway)[ADDRESS])
    assert {number: count for number, count in found.items() if count > 1} == {}
    assert set(range(begun)) <= set(found)


def test_a_key_is_known_at_every_proxy(running):
    urls = [
        f"http://127.0.0.1:{port - PORTS['mqtt'] + PORTS['http']}/topics/once/x"
        for port in (running.one, running.other)
    ]
    subscriber = PahoClient(running.other).connect()
    subscriber.subscribe("once/#", qos=1)

    def post(client, url, body, key, **params):
        return client.post(url, content=body, params=params, headers={"idempotency-key": key})

    with httpx.Client(timeout=90) as client, ThreadPoolExecutor(AT_ONCE) as senders:
        first = post(client, urls[0], "a", "k1")
        again = post(client, urls[1], "a", "k1")
        assert (first.status_code, again.status_code) == (201, 201)
        assert (first.json(), first.headers["location"]) == (again.json(), again.headers["location"])
        other = post(client, urls[1], "b", "k1")
        assert other.status_code == 422
        assert "idempotency-key" in other.json()["detail"]
        late = [post(client, url, "later", "k2", delay=3_600).json() for url in urls]
        assert late[0] == late[1]
        assert late[0]["timer"]
        together = list(senders.map(lambda n: post(client, urls[n % 2], "c", "k3").json(), range(4 * AT_ONCE)))
        assert all(answer == together[0] for answer in together)
        assert post(client, urls[0], "the end", "k4").status_code == 201
    found = []
    while not found or found[-1] != b"the end":
        found.append(subscriber.get().payload)
    assert found == [b"a", b"c", b"the end"]
    subscriber.close()
