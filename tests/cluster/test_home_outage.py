"""The group with the keys and values is away for longer than a proxy may be unheard of: connections stay, and so does
all that other groups serve. Nobody takes over from a proxy that lives, and what has waited is done."""

import os
import signal
import time

import pytest

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, CloseGroup, CreateTopic
from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.local_clusters import controller_of, on_free_ports, started, until_ready
from tests.support.mqtt.paho_client import connected

pytestmark = pytest.mark.slow

TOPIC = "steady"  # in group 1


async def prepare(plan):
    async with controller_of(plan) as controller:
        await controller.do(AddGroup(number=0, config=GroupConfig(replicas=2, min_in_sync=2)))
        await controller.do(AddGroup(number=1, config=GroupConfig(replicas=2, min_in_sync=1)))
        await controller.do(CloseGroup(number=0))
        await controller.do(CreateTopic(name=TOPIC, queues=2))
        await controller.do(CloseGroup(number=0, closed=False))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started(on_free_ports(ClusterPlan(tmp_path_factory.mktemp("cluster"), 1, 2, 2, 2, 2)), prepare) as cluster:
        yield cluster


def frozen(cluster, *names):
    for name in names:
        os.kill(cluster.pid(name), signal.SIGSTOP)

    def end():
        for name in names:
            os.kill(cluster.pid(name), signal.SIGCONT)

    return end


def killed(cluster, *names):
    for name in names:
        cluster.stop(name, kill=True)

    def end():
        for name in names:
            cluster.start(name)

    return end


HOME = ["store-0-1", "store-0-2"]


@pytest.mark.parametrize(
    ("hurt", "names", "seconds"),
    [(frozen, HOME, 15.0), (killed, HOME[1:], 9.0)],
    ids=["all of it frozen", "its quorum killed"],
)
def test_connections_stay_while_the_home_group_is_away(cluster, hurt, names, seconds, request):
    here, there = (node.port for node in cluster.nodes if node.role == "proxy")
    case = request.node.callspec.id
    mover = connected(here, f"mover {case}")
    subscribers = [mover, connected(there, f"subscriber {case}", will=b"gone")]
    publishers = [connected(port, f"publisher {port} {case}", will=b"gone", expiry_s=0) for port in (here, there)]
    watcher = connected(there, f"watcher {case}", clean=True, expiry_s=0)
    clients = [*subscribers, *publishers, watcher]
    for one in subscribers:
        one.subscribe(f"{TOPIC}/#", 1)
    watcher.subscribe("wills", 1)
    end = hurt(cluster, *names)
    sent = 0
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for one in publishers:
                one.publish(f"{TOPIC}/a", b"%d" % sent)
                sent += 1
            time.sleep(0.1)
    finally:
        end()
    assert sent > 2 * len(publishers), "publishing went on"
    until_ready(cluster, [node.name for node in cluster.nodes])
    for one in publishers:
        one.publish(f"{TOPIC}/a", b"%d" % sent)
        sent += 1
    for one in subscribers:
        assert sorted(int(one.body()) for _ in range(sent)) == list(range(sent))
    assert all(one.left.empty() for one in clients)
    moved = connected(there, f"mover {case}")  # clients that need the home group go on too
    assert moved.present
    assert str(mover.left.get(timeout=90)) == "Session taken over"
    assert all(one.left.empty() for one in clients[1:])
    assert watcher.messages.empty()
    for one in (moved, *clients[1:]):
        one.close()
