"""A bridge of two proxies, one of which is stopped (SIGSTOP): the other goes on, and who wakes up doubles nothing."""

import os
import signal
from collections import Counter

import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.bridged_proxies import bridge, runs
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started
from tests.support.mqtt.paho_client import PahoClient
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT = 100  # messages of each part: before the pause, during it, and after it
TIMES = """
[proxy]
ttl_s = 6.0

[bridges.up]
reconnect_min_s = 0.05
reconnect_max_s = 0.5
"""
MQTT = """
url = "mqtt://127.0.0.1:{mqtt}"

[[bridges.up.subscribe]]
filter = "up/#"
qos = 2
to = "plant7/{{1}}"
"""
AMQP = """
url = "amqp://127.0.0.1:{amqp}"

[[bridges.up.consume]]
queue = "up"
declare = true
bindings = [{{ exchange = "amq.topic", routing_key = "up.#" }}]
to = "plant7/{{2}}"
"""


@pytest.fixture(params=[MQTT, AMQP], ids=["mqtt", "amqp"])
def cluster(request, new_gateway, tmp_path):
    source = new_gateway().start()
    upstream = request.param.format(mqtt=source.port("mqtt"), amqp=source.port("amqp"))
    plan = on_free_ports(ClusterPlan(tmp_path / "cluster", 1, 1, 1, 1, 2))
    with started(plan, all_groups, proxies=TIMES + upstream) as cluster:
        cluster.source = source
        cluster.proxies = [node.name for node in cluster.nodes if node.role == "proxy"]
        yield cluster


def test_a_stopped_proxy_that_goes_on_doubles_nothing_that_another_has_bridged(cluster):
    one, other = cluster.proxies
    runner = wait_until(lambda: runs(cluster, one, other), "no proxy runs the bridge")
    idle = other if runner == one else one
    reader = PahoClient(cluster.node(idle).port).connect()
    reader.subscribe("plant7/#", qos=2)
    writer = PahoClient(cluster.source.port("mqtt")).connect()

    def publish(first):
        for number in range(first, first + COUNT):
            writer.publish(f"up/{number % 5}", b"%d" % number, 2)

    try:
        publish(0)
        found = Counter(reader.bodies(COUNT))
        wait_until(lambda: bridge(cluster, runner)["stored"] == COUNT, "not all is acknowledged upstream")
        pid = cluster.pid(runner)
        os.kill(pid, signal.SIGSTOP)
        try:
            publish(COUNT)  # into the socket's buffer of who sleeps
            wait_until(lambda: runs(cluster, idle), "nobody goes on")
        finally:
            os.kill(pid, signal.SIGCONT)
        publish(2 * COUNT)
        wait_until(lambda: not bridge(cluster, runner)["here"], "two run the bridge")
        while len(found) < 3 * COUNT:
            found[reader.body()] += 1
        writer.publish("up/0", b"the end", 2)
        while b"the end" not in found:
            found[reader.body()] += 1
        assert {body: count for body, count in found.items() if count > 1} == {}
        assert set(found) == {b"%d" % number for number in range(3 * COUNT)} | {b"the end"}
    finally:
        reader.close()
        writer.close()
