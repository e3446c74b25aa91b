"""A bridge of two proxies: one of them runs it, and when that one is killed the other goes on, with nothing lost."""

import pytest
from paho.mqtt.packettypes import PacketTypes

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.bridged_proxies import bridge, runs
from tests.support.cluster.local_clusters import all_groups, on_free_ports, started, until_ready
from tests.support.mqtt.paho_client import PahoClient, fresh, properties
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

COUNT = 300
BRIDGE = """
[proxy]
ttl_s = 2.0

[bridges.up]
url = "mqtt://127.0.0.1:{port}"
reconnect_min_s = 0.05
reconnect_max_s = 0.5

[[bridges.up.subscribe]]
filter = "up/#"
qos = 2
to = "plant7/{{1}}"
"""


@pytest.fixture
def cluster(new_gateway, tmp_path):
    source = new_gateway().start()
    plan = on_free_ports(ClusterPlan(tmp_path / "cluster", 1, 1, 1, 1, 2))
    with started(plan, all_groups, proxies=BRIDGE.format(port=source.port("mqtt"))) as cluster:
        cluster.source = source
        cluster.proxies = [node.name for node in cluster.nodes if node.role == "proxy"]
        yield cluster


def test_one_proxy_runs_it_and_another_goes_on_when_it_is_killed_or_ends(cluster):
    one, other = cluster.proxies
    runner = wait_until(lambda: runs(cluster, one, other), "no proxy runs the bridge")
    idle = other if runner == one else one
    assert not bridge(cluster, idle)["here"]
    session = properties(PacketTypes.CONNECT, SessionExpiryInterval=600)
    name = fresh("reader")
    reader = PahoClient(cluster.node(idle).port, client_id=name)
    reader.connect(clean_start=False, properties=session)
    reader.subscribe("plant7/#", qos=1)
    writer = PahoClient(cluster.source.port("mqtt")).connect()
    try:
        for number in range(COUNT):
            writer.publish(f"up/{number % 5}", b"%d" % number, 1 + number % 2)
            if number == COUNT // 3:
                cluster.stop(runner, kill=True)
        came = set()
        while len(came) < COUNT:
            came.add(int(reader.get().payload))
        assert came == set(range(COUNT))
        assert wait_until(lambda: runs(cluster, idle), "the other one does not run it") == idle
        # And when one ends in order, that lets go at once. On a busy machine either may have it by then.
        cluster.start(runner)
        until_ready(cluster, [runner])
        last = wait_until(lambda: runs(cluster, one, other), "no proxy runs the bridge")
        rest = other if last == one else one
        reader.close()
        cluster.stop(last)
        wait_until(lambda: runs(cluster, rest), "nobody goes on")
        writer.publish("up/x", b"last", 1)
        wait_until(lambda: bridge(cluster, rest)["stored"], "nothing comes")
    finally:
        reader.close()
        writer.close()
