"""Consumer groups over processes: a member whose proxy is killed goes on at another, or another member does."""

import contextlib
import threading
import time

import httpx
import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started, until_ready
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started(on_free_ports(ClusterPlan(tmp_path_factory.mktemp("groups"), 1, 1, 1, 1, 2)), all_groups) as cluster:
        yield cluster


@pytest.fixture
def urls(cluster):
    ports = [node.port - PORTS["mqtt"] + PORTS["http"] for node in cluster.nodes if node.role == "proxy"]
    return [f"http://127.0.0.1:{port}" for port in ports]


@contextlib.contextmanager
def without(cluster, name):
    """Kills a proxy, and starts it again at the end."""
    cluster.stop(name, kill=True)
    try:
        yield
    finally:
        cluster.start(name)
        until_ready(cluster, [name])


def publish(url, topic, numbers):
    events = [
        {
            "specversion": "1.0",
            "type": "n",
            "source": "/s",
            "id": f"{n}",
            "subject": f"{topic}/x",
            "partitionkey": f"k{n}",
        }
        for n in numbers
    ]
    kind = {"content-type": "application/cloudevents-batch+json"}
    httpx.post(f"{url}/events", json=events, headers=kind, timeout=90).raise_for_status()


class Consumer:
    """A client in a thread: reads, notes, commits, until it is stopped. `hold` keeps what it reads uncommitted."""

    def __init__(self, url, group, topic, *, ttl_s=3, **options):
        self.url, self.group, self.topic = url, group, topic
        self.client = httpx.Client(timeout=90, **options)
        asked = {"topic": topic, "ttl_s": ttl_s}
        answer = self.client.post(f"{url}/groups/{group}/members", json=asked).raise_for_status()
        self.member = answer.json()["member"]
        self.seen = []  # (queue, offset, id)
        self.committed = []  # as answers came
        self.queues = []
        self.hold = threading.Event()
        self.stopped = threading.Event()
        self.failed = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def path(self):
        return f"{self.url}/groups/{self.group}/members/{self.member}"

    def start(self):
        self._thread.start()
        return self

    def _run(self):
        try:
            while not self.stopped.is_set():
                self.step()
        except (httpx.HTTPError, AssertionError) as error:
            self.failed = error

    def step(self):
        got = self.client.get(f"{self.path}/messages", params={"max": 20, "wait": 1}).raise_for_status().json()
        self.queues = got["queues"]
        self.seen += [(one["queue"], one["offset"], one["event"]["id"]) for one in got["messages"]]
        if got["messages"] and not self.hold.is_set():
            done = self.client.post(f"{self.path}/commit", json={"after": got["after"]})
            if done.status_code != 409:
                self.committed.append(done.raise_for_status().json()["offsets"])

    def stop(self):
        self.stopped.set()
        if self._thread.is_alive():
            self._thread.join(TIMEOUT_S)
        self.client.close()


def lag(url, group):
    return httpx.get(f"{url}/groups/{group}", timeout=90).raise_for_status().json()["lag"]


def ascending(consumer):
    """Returns whether the committed positions that a consumer was told never went back."""
    at = {}
    for offsets in consumer.committed:
        for queue, offset in offsets.items():
            if offset < at.get(queue, 0):
                return False
            at[queue] = offset
    return True


def check_whole(consumers, count):
    """Checks that every message was read, and of each queue every offset."""
    seen = {item for consumer in consumers for item in consumer.seen}
    assert {int(id_) for _, _, id_ in seen} == set(range(count))
    for queue in {queue for queue, _, _ in seen}:
        offsets = sorted({at for number, at, _ in seen if number == queue})
        assert offsets == list(range(len(offsets)))
    assert all(ascending(consumer) for consumer in consumers)


def test_a_member_goes_on_at_another_proxy(cluster, urls):
    publish(urls[1], "moves", range(200))
    consumer = Consumer(urls[0], "moving", "moves", ttl_s=60)
    with contextlib.closing(consumer.client):
        goes_on_elsewhere(cluster, urls, consumer)
    check_whole([consumer], 200)
    assert len(consumer.seen) == 200, "nothing came twice"
    assert lag(urls[1], "moving") == 0


def goes_on_elsewhere(cluster, urls, consumer):
    consumer.step()
    assert consumer.committed
    got = consumer.client.get(f"{consumer.path}/messages", params={"max": 5}).raise_for_status().json()
    with without(cluster, "proxy-1"):
        with pytest.raises(httpx.HTTPError):
            consumer.step()
        consumer.url = urls[1]
        done = consumer.client.post(f"{consumer.path}/commit", json={"after": got["after"]}).raise_for_status()
        consumer.committed.append(done.json()["offsets"])
        consumer.seen += [(one["queue"], one["offset"], one["event"]["id"]) for one in got["messages"]]
        while len({id_ for _, _, id_ in consumer.seen}) < 200:
            consumer.step()


def test_another_member_takes_over_from_one_that_is_gone_with_its_proxy(cluster, urls):
    publish(urls[1], "works", range(200))
    gone, other = Consumer(urls[0], "working", "works"), Consumer(urls[1], "working", "works")
    try:
        gone.start()
        other.start()
        wait_until(lambda: len(gone.queues) == len(other.queues) == 4, "the queues are not shared")
        wait_until(lambda: lag(urls[1], "working") == 0, "not everything is read")
        shared = set(gone.queues) | set(other.queues)
        gone.hold.set()
        publish(urls[1], "works", range(200, 300))
        wait_until(lambda: any(int(id_) >= 200 for _, _, id_ in gone.seen), "nothing to lose")
        with without(cluster, "proxy-1"):
            publish(urls[1], "works", range(300, 400))
            wait_until(lambda: gone.failed is not None, "the client has not seen its proxy die")
            wait_until(lambda: set(other.queues) == shared, "the queues are not taken over")
            wait_until(lambda: lag(urls[1], "working") == 0, "not everything is read")
            refused = httpx.post(
                f"{urls[1]}/groups/working/members/{gone.member}/commit", json={"after": "1"}, timeout=90
            )
            assert refused.status_code == 404
        assert other.failed is None
    finally:
        gone.stop()
        other.stop()
    check_whole([gone, other], 400)


def test_who_waits_is_answered_when_the_gateway_ends(new_gateway):
    gateway = new_gateway().start()
    publish(gateway.url, "t", [0])
    consumer = Consumer(gateway.url, "g", "t", ttl_s=60)
    answers = []
    with contextlib.closing(consumer.client):
        consumer.step()
        assert httpx.post(f"{gateway.url}/groups/g/reset", json={"to": "latest"}).status_code == 200
        waiting = threading.Thread(
            target=lambda: answers.append(consumer.client.get(f"{consumer.path}/messages", params={"wait": 60}))
        )
        waiting.start()
        wait_until(lambda: owners(gateway.url, "g") == {consumer.member}, "it has no queues again, so it does not wait")
        began = time.monotonic()
        assert gateway.stop() == 0
        waiting.join(TIMEOUT_S)
    assert time.monotonic() - began < 30, "it was waited for"
    assert [answer.status_code for answer in answers] == [200]


def owners(url, group):
    return {one["member"] for one in httpx.get(f"{url}/groups/{group}", timeout=90).json()["queues"]}


def test_every_worker_answers_for_every_member(tmp_path):
    from tests.support.process.gateways import GatewayProcess

    gateway = GatewayProcess(tmp_path / "data", "--workers", "2").start()
    try:
        publish(gateway.url, "shared", range(300))
        each = httpx.Limits(max_keepalive_connections=0)  # a connection for each request, to one worker or the other
        consumers = [Consumer(gateway.url, "g", "shared", ttl_s=30, limits=each).start() for _ in range(3)]
        wait_until(lambda: sum(len(consumer.queues) for consumer in consumers) == 8, "the queues are not shared")
        wait_until(lambda: lag(gateway.url, "g") == 0, "not everything is read")
        for consumer in consumers:
            consumer.stop()
            assert consumer.failed is None
            assert 2 <= len(consumer.queues) <= 3
        check_whole(consumers, 300)
    finally:
        gateway.close()


def test_messages_that_are_leased_by_one_proxy_are_settled_by_another(cluster, urls):
    """Handles are of the store: their proxy may be dead. Dead letters are settled and stored by whoever meets them."""
    one, other = (httpx.Client(base_url=url, timeout=TIMEOUT_S) for url in urls)

    def post(client, target, **body):
        answer = client.post(target, json=body)
        answer.raise_for_status()
        return answer.json()

    def received(client, group, count):
        found = []
        while len(found) < count:
            some = post(client, f"/groups/{group}/receive", max=count - len(found), wait=30)["messages"]
            assert some
            found += some
        return found

    def handles(messages):
        return [message["handle"] for message in messages]

    with one, other:
        terms = {"topic": "leased", "lease_s": 600, "attempts": 2, "dead_letter": "given/up"}
        assert one.put("/groups/leased", json=terms).status_code == 201
        assert other.put("/groups/leased", json=terms).status_code == 200
        publish(urls[0], "leased", range(20))
        first = received(one, "leased", 20)
        assert post(other, "/groups/leased/ack", handles=handles(first[:8])) == {"done": 8, "refused": []}
        assert post(other, "/groups/leased/nack", handles=handles(first[8:]), delay_s=0)["refused"] == []
        again = received(other, "leased", 12)
        assert {message["deliveries"] for message in again} == {2}
        with without(cluster, "proxy-1"):
            assert post(other, "/groups/leased/ack", handles=handles(again[:5]))["refused"] == []
            longer = post(other, "/groups/leased/extend", handles=handles(again[5:]), lease_s=900)["handles"]
            assert post(other, "/groups/leased/nack", handles=longer, delay_s=0)["refused"] == []
            assert post(other, "/groups/leased/receive", wait=2) == {"messages": []}
            other.put("/groups/letters", json={"topic": "given"})
            letters = [message["event"] for message in received(other, "letters", 7)]
            assert {letter["id"] for letter in letters} == {message["event"]["id"] for message in again[5:]}
            assert {(letter["deadlettergroup"], letter["subject"]) for letter in letters} == {("leased", "leased/x")}
            assert other.get("/groups/leased").json()["lag"] == 0
