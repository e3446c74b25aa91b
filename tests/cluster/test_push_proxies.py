"""A subscription of two proxies: one delivers, and when that one is killed the other goes on, with nothing lost."""

import urllib.request
from typing import Any, ClassVar

import httpx
import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started, until_ready
from tests.support.http.broker_sinks import MqttSink
from tests.support.http.webhook_sink import WebhookSink
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE_S = 60
COUNT = 60
CONFIG = """
[proxy]
ttl_s = 2.0

[subscriptions]
private_sinks = ["127.0.0.1"]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    plan = on_free_ports(ClusterPlan(tmp_path_factory.mktemp("push") / "cluster", 1, 1, 1, 1, 2))
    with started(plan, all_groups, proxies=CONFIG) as cluster:
        cluster.proxies = [node.name for node in cluster.nodes if node.role == "proxy"]
        yield cluster


class HttpSink(WebhookSink):
    """The standard library's HTTP server."""

    protocol = "HTTP"
    settings: ClassVar[dict[str, Any]] = {}

    def bodies(self):
        return [one.body for one in self.taken]


class BrokerSink(MqttSink):
    """mosquitto."""

    def bodies(self):
        return [one.data for one in list(self.came)]


@pytest.fixture(params=["http", "mqtt"])
def sink(request, tmp_path):
    if request.param == "mqtt" and BrokerSink.missing:
        pytest.skip(BrokerSink.missing)
    sink = HttpSink() if request.param == "http" else BrokerSink(tmp_path)
    yield sink
    sink.close()


def client(cluster, name):
    port = cluster.node(name).port - PORTS["mqtt"] + PORTS["http"]
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, trust_env=False)


def runs(cluster, *names):
    """Returns the proxies that run subscriptions, by their figures."""
    found = []
    for name in names:
        with urllib.request.urlopen(f"http://{cluster.admin(name)}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        counts = [line.split()[-1] for line in lines if line.startswith('headgate_push_subscriptions{state="active"')]
        found += [name] * (sum(map(float, counts)) > 0)
    assert len(found) <= 1
    return found[0] if found else None


def test_one_proxy_delivers_and_another_goes_on_when_it_is_killed_or_ends(cluster, sink):
    one, other = cluster.proxies
    body = {"sink": sink.url, "protocol": sink.protocol, "config": {"addresses": ["push/#"]}}
    body["protocolsettings"] = {**sink.settings, "retrymin": 0.1, "retrymax": 0.5}
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

    with client(cluster, one) as opened:
        made = opened.post("/subscriptions", json=body)
        assert made.status_code == 201
    runner = wait_until(lambda: runs(cluster, one, other), "no proxy runs the subscription")
    idle = other if runner == one else one
    publish(idle, COUNT // 2)
    sink.wait_until(sink.bodies)
    publish(idle, COUNT // 2)  # of which some are under way
    cluster.stop(runner, kill=True)
    publish(idle, COUNT)
    sink.wait_until(lambda: {*sink.bodies()} >= sent)
    assert runs(cluster, idle) == idle
    if isinstance(sink, BrokerSink):
        return  # how it ends in order is not the sink's to say
    # And back, when that one ends in order.
    cluster.start(runner)
    until_ready(cluster, [runner])
    cluster.stop(idle)
    publish(runner, COUNT)
    sink.wait_until(lambda: {*sink.bodies()} >= sent)
    assert runs(cluster, runner) == runner
    order = [int(body) for body in sink.bodies()]
    for key in range(5):  # each again from where it was committed, and never backwards by more than that
        first = [number for number in dict.fromkeys(order) if number % 5 == key]
        assert first == sorted(first)
    cluster.start(idle)
    until_ready(cluster, [idle])
    with client(cluster, runner) as opened:
        assert opened.delete(f"/subscriptions/{made.json()['id']}").status_code == 200
    wait_until(lambda: runs(cluster, one, other) is None, "it goes on")
