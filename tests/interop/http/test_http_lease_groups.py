"""Groups that lease messages, by httpx over real sockets: several receivers, dead letters, kill -9."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    one = GatewayProcess(tmp_path_factory.mktemp("leases") / "data").start()
    yield one
    one.close()


def post(client: httpx.Client, target: str, **body: Any) -> Any:
    answer = client.post(target, json=body)
    assert answer.status_code in {200, 207}, answer.text
    return answer.json()


def bodies(received: Any) -> list[Any]:
    return [one["event"]["data"] for one in received["messages"]]


def handles(received: Any) -> list[str]:
    return [one["handle"] for one in received["messages"]]


def test_receivers_share_the_work_and_poison_becomes_a_dead_letter(
    opened: Callable[[], httpx.Client], request: pytest.FixtureRequest
) -> None:
    topic = "leased1" if "1.1" in request.node.name else "leased2"
    client = opened()
    created = client.put(f"/groups/{topic}", json={"topic": topic, "attempts": 2, "dead_letter": f"dead/{topic}"})
    assert created.status_code == 201

    def work(_: int) -> list[Any]:
        mine, done = opened(), []
        while found := post(mine, f"/groups/{topic}/receive", max=7, wait=0.5)["messages"]:
            good = [one for one in found if one["event"]["data"] != 13]
            answer = post(mine, f"/groups/{topic}/ack", handles=[one["handle"] for one in good])
            assert answer == {"done": len(good), "refused": []}
            done += [one["event"]["data"] for one in good]
            if bad := [one["handle"] for one in found if one["event"]["data"] == 13]:
                assert post(mine, f"/groups/{topic}/nack", handles=bad, delay_s=0)["done"] == 1
        return done

    for n in range(50):
        client.post(f"/topics/{topic}/{n}", content=str(n), headers={"content-type": "application/json"})
    with ThreadPoolExecutor(3) as pool:
        found = [one for some in pool.map(work, range(3)) for one in some]
    assert sorted(found) == [n for n in range(50) if n != 13]
    letter = client.get(f"/topics/dead/{topic}")
    assert (letter.text, letter.headers["ce-deadletterattempts"]) == ("13", "2")
    assert (letter.headers["ce-deadletteraddress"], letter.headers["ce-deadlettergroup"]) == (f"{topic}/13", topic)


@pytest.mark.parametrize("http2", [False, True])
def test_nothing_is_leased_to_a_client_that_has_given_up_waiting(gateway: GatewayProcess, http2: bool) -> None:
    """By HTTP/1.1 it closes its connection, by HTTP/2 it resets its stream as well."""
    name = f"left{http2}"
    target = f"/groups/{name}/receive"
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        client.put(f"/groups/{name}", json={"topic": name, "lease_s": 3_600})
        with (
            httpx.Client(base_url=gateway.url, timeout=1, trust_env=False, http1=not http2, http2=http2) as impatient,
            pytest.raises(httpx.ReadTimeout),
        ):
            impatient.post(target, json={"wait": 60})
        client.post(f"/topics/{name}/a", content="1", headers={"content-type": "application/json"})
        (found,) = post(client, target, wait=30)["messages"]
        assert (found["event"]["data"], found["deliveries"]) == (1, 1)


def test_what_is_acknowledged_stays_so_after_kill_9_and_what_is_leased_comes_back(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        client.put("/groups/killed", json={"topic": "killed", "lease_s": 3_600})
        for n in range(4):
            client.post(f"/topics/killed/{n}", content=str(n), headers={"content-type": "application/json"})
        received = post(client, "/groups/killed/receive", max=3, wait=10)
        first, second, third = handles(received)
        assert post(client, "/groups/killed/ack", handles=[first])["done"] == 1
        left = set(range(4)) - {*bodies(received)[:2]}
    gateway.kill()
    gateway.start()
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        assert post(client, "/groups/killed/ack", handles=[second])["done"] == 1, "it was leased to nobody else since"
        received = post(client, "/groups/killed/receive", wait=10)
        assert set(bodies(received)) == left
        refused = client.post("/groups/killed/ack", json={"handles": [third]})
        assert (refused.status_code, refused.json()["refused"][0]["status"]) == (207, 409)
        assert post(client, "/groups/killed/ack", handles=handles(received))["refused"] == []
        shown = client.get("/groups/killed").json()
        assert (shown["lag"], shown["terms"]["lease_s"]) == (0, 3_600)


def test_a_command_lists_and_shows_them(gateway: GatewayProcess) -> None:
    with httpx.Client(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client:
        client.put("/groups/shown", json={"topic": "shown"})
        found = {one["group"]: one["strategy"] for one in client.get("/groups").json()}
        assert found["shown"] == "leases"
        batch = client.post("/groups/shown/receive", headers={"accept": "application/cloudevents-batch+json"})
        assert (json.loads(batch.text), batch.headers["content-type"]) == ([], "application/cloudevents-batch+json")
