"""A subscription of two proxies: one delivers, and when that one is killed the other goes on, with nothing lost."""

import urllib.request

import httpx
import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import on_free_ports, one_group, started, until_ready
from tests.support.http.webhook_sink import WebhookSink
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATIENCE_S = 60
COUNT = 60
CONFIG = """
[proxy]
ttl_s = 2.0

[subscriptions]
private_sinks = ["127.0.0.1"]
"""


@pytest.fixture
def cluster(tmp_path):
    plan = on_free_ports(ClusterPlan(tmp_path / "cluster", 1, 1, 1, 1, 2))
    with started(plan, one_group, proxies=CONFIG) as cluster:
        cluster.proxies = [node.name for node in cluster.nodes if node.role == "proxy"]
        yield cluster


def client(cluster, name):
    port = cluster.node(name).port - PORTS["mqtt"] + PORTS["http"]
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False)


def runs(cluster, *names):
    """The proxies that run subscriptions, by their figures."""
    found = []
    for name in names:
        with urllib.request.urlopen(f"http://{cluster.admin(name)}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        counts = [line.split()[-1] for line in lines if line.startswith('headgate_push_subscriptions{state="active"')]
        found += [name] * (sum(map(float, counts)) > 0)
    assert len(found) <= 1
    return found[0] if found else None


def test_one_proxy_delivers_and_another_goes_on_when_it_is_killed_or_ends(cluster):
    sink = WebhookSink()
    one, other = cluster.proxies
    body = {"sink": sink.url, "protocol": "HTTP", "config": {"addresses": ["push/#"]}}
    body["protocolsettings"] = {"retrymin": 0.1, "retrymax": 0.5}
    sent: set[bytes] = set()

    def publish(at, count):
        with client(cluster, at) as opened:
            for _ in range(count):
                number = b"%d" % len(sent)
                answer = opened.post(
                    f"/topics/push/{len(sent) % 5}", content=number, headers={"ce-id": number.decode()}
                )
                assert answer.status_code == 201
                sent.add(number)

    try:
        with client(cluster, one) as opened:
            assert opened.post("/subscriptions", json=body).status_code == 201
        runner = wait_until(lambda: runs(cluster, one, other), "no proxy runs the subscription")
        idle = other if runner == one else one
        publish(idle, COUNT)
        sink.wait_until(lambda: {one.body for one in sink.taken} >= sent)
        cluster.stop(runner, kill=True)
        publish(idle, COUNT)
        sink.wait_until(lambda: {one.body for one in sink.taken} >= sent)
        assert runs(cluster, idle) == idle
        # And back, when that one ends in order.
        cluster.start(runner)
        until_ready(cluster, [runner])
        cluster.stop(idle)
        publish(runner, COUNT)
        sink.wait_until(lambda: {one.body for one in sink.taken} >= sent)
        assert runs(cluster, runner) == runner
        order = [int(one.body) for one in sink.taken]
        for key in range(5):  # each again from where it was committed, and never backwards by more than that
            first = [number for number in dict.fromkeys(order) if number % 5 == key]
            assert first == sorted(first)
    finally:
        sink.close()
