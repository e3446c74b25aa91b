"""All controllers are put back to a backup, and all other processes restarted: they stop, and say why.

The controllers would give the numbers of queues again that they have given since the backup, and readers of a new
topic would get the messages of another one.
"""

import time

import httpx
import pytest

from controller.api.commands import CreateTopic
from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.damage import copy, empty, headgate, put_back
from tests.support.cluster.local_clusters import (
    PATIENCE_S,
    all_groups,
    controller_of,
    on_free_ports,
    started,
    until_ready,
)

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

FORGOTTEN = "the controllers have forgotten committed metadata"
CONTROLLERS = [f"controller-{n}" for n in (1, 2, 3)]
STORE, PROXY = "store-0-1", "proxy-1"


@pytest.fixture
def cluster(tmp_path):
    plan = on_free_ports(ClusterPlan(tmp_path, groups=1, replicas=1, min_in_sync=1, proxies=1))
    with started(plan, all_groups) as found:
        yield found


def http(cluster):
    return httpx.Client(base_url=f"http://127.0.0.1:{8080 + cluster.plan.port_offset}", timeout=30)


def publish(cluster, topic):
    """Publishes to a topic until that is acknowledged."""
    deadline = time.monotonic() + PATIENCE_S
    with http(cluster) as client:
        while (answer := client.post(f"/topics/{topic}/x", json=topic)).status_code != 201:
            assert time.monotonic() < deadline, answer.text
            time.sleep(0.05)


def read(cluster, topic):
    """Returns all messages that a new consumer group of a topic reads."""
    with http(cluster) as client:
        joined = client.post(f"/groups/{topic}/members", json={"topic": topic, "start": "earliest"})
        assert joined.status_code == 201, joined.text
        member = joined.json()["member"]
        answer = client.get(f"/groups/{topic}/members/{member}/messages").json()
        client.delete(f"/groups/{topic}/members/{member}")
        return [message["event"]["data"] for message in answer["messages"]]


def restart(cluster, *names):
    for name in names:
        cluster.start(name)
    until_ready(cluster, names, timeout_s=PATIENCE_S)


def ends_as_metadata_is_forgotten(cluster, name):
    """Starts a process that is to stop by itself, and to say why."""
    cluster.start(name)
    child = cluster.children[name]
    assert child.process.wait(PATIENCE_S) == 1
    assert FORGOTTEN in child.last_words()
    cluster.stop(name)


async def queues_of(cluster, topic):
    async with controller_of(cluster.plan) as controller:
        await controller.barrier()
        found = controller.topic(topic)
        return () if found is None else found.queues


async def test_stores_and_proxies_that_start_do_not_believe_controllers_that_were_put_back(cluster):
    data, kept = cluster.plan.directory / "data", cluster.plan.directory / "kept"

    def put_all_back():
        cluster.stop(*CONTROLLERS, kill=True)
        for name in CONTROLLERS:
            put_back(kept / name, data / name, in_place=True)

    publish(cluster, "kept")
    cluster.stop(*CONTROLLERS)
    for name in CONTROLLERS:
        copy(data / name, kept / name)
    restart(cluster, *CONTROLLERS)
    publish(cluster, "lost")
    lost = await queues_of(cluster, "lost")
    assert lost

    put_all_back()
    restart(cluster, *CONTROLLERS)
    cluster.stop(PROXY)
    ends_as_metadata_is_forgotten(cluster, PROXY)  # the store has not been restarted, and knows
    cluster.stop(STORE, kill=True)
    ends_as_metadata_is_forgotten(cluster, STORE)
    async with controller_of(cluster.plan) as stranger:  # of a client that asks no store
        assert set((await stranger.do(CreateTopic(name="another", queues=len(lost)))).queues) == set(lost)
        await stranger.do(CreateTopic(name="more", queues=100))
    ends_as_metadata_is_forgotten(cluster, STORE)

    put_all_back()  # the way out: they go on from the backup, with numbers far beyond
    done = headgate(cluster, CONTROLLERS[0], "controller", "recover", said="y\n")
    assert done.returncode == 0, done.stderr
    for name in CONTROLLERS[1:]:
        empty(data / name)
    restart(cluster, CONTROLLERS[0])
    restart(cluster, *CONTROLLERS[1:], STORE, PROXY)
    assert await queues_of(cluster, "lost") == ()
    for topic in ("another", "lost"):
        publish(cluster, topic)
        assert not set(await queues_of(cluster, topic)) & set(lost)
    for topic in ("kept", "another", "lost"):
        assert read(cluster, topic) == [topic]
