"""A cluster of processes whose replicas have all damaged the same message: a proxy says what a single node would."""

import json
import urllib.error
import urllib.request

import httpx
import pytest

from gateway.process.local_cluster import ClusterPlan
from tests.support.cluster.damage import segments
from tests.support.cluster.local_clusters import PATIENCE_S, all_groups, on_free_ports, started, until_ready
from tests.support.cluster.masters import only_master, status
from tests.support.http.lost_readers import HURT, TOPIC, body, catch_up, fill, read_around, session
from tests.support.mqtt.paho_client import fresh
from tests.support.process.ports import PORTS
from tests.support.process.waiting import wait_until
from tests.support.store.flips import flip_all

pytestmark = pytest.mark.slow

PROXY = "proxy-1"


def page(cluster, path):
    """Returns the text of a page of the proxy."""
    try:
        with urllib.request.urlopen(f"http://{cluster.admin(PROXY)}{path}", timeout=60) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


def flip_everywhere(cluster, stores, what):
    """Flips a bit of some bytes in the logs of all replicas, which are stopped."""
    cluster.stop(*stores)
    for name in stores:
        assert sum(flip_all(path, what) for path in segments(cluster.plan.directory / "data" / name)) == 1
    for name in stores:
        cluster.start(name)
    until_ready(cluster, stores, timeout_s=PATIENCE_S)


def test_a_proxy_says_what_damage_has_taken_and_its_readers_meet_it_as_on_a_single_node(tmp_path):
    """Proxies said only how many bytes of which replica no other one had."""
    plan = on_free_ports(ClusterPlan(tmp_path, controllers=1, groups=1, replicas=3, min_in_sync=2, proxies=1))
    with started(plan, all_groups) as cluster:
        stores = cluster.of_role("store")
        port = cluster.node(PROXY).port
        url = f"http://127.0.0.1:{port - PORTS['mqtt'] + PORTS['http']}"
        name = fresh("away")[-23:]
        away = session(port, name)
        assert away.subscribe([("plant/#", 1), ("$SYS/session/lost", 0)]) == [1, 0]
        away.close()
        with httpx.Client(base_url=url, timeout=90) as http:
            fill(http)
            flip_everywhere(cluster, stores, body(HURT))

            found = wait_until(
                lambda: (one := status(cluster, PROXY)).get("lost") and one, "nothing is said to be lost"
            )
            (lost,) = found["lost"]
            assert (lost["topic"], lost["first"], lost["next"]) == (TOPIC, HURT, HURT + 1)
            assert (found["ready"], found["lost_more"]) == (True, 0)
            master, epoch = only_master(cluster)
            said = status(cluster, master)
            assert said["lost"] == found["lost"]
            ((_, start, end, *_),) = said["damages"]
            words = (
                f"store group 0: {end - start} bytes of its log in 1 ranges are lost; "
                f"plant, queue {lost['queue']}, offsets {HURT} to {HURT}"
            )
            assert words in found["warnings"]
            assert words in page(cluster, "/readyz").splitlines()
            (group,) = found["groups"]
            assert (group["lost_messages"], group["lost_unknown"]) == (1, "")
            metrics = page(cluster, "/metrics")
            assert 'headgate_group_lost_messages{group="0"} 1.0' in metrics
            assert 'headgate_group_lost_unknown{group="0"} 0.0' in metrics

            read_around(http, lost["queue"])
        (told,) = [json.loads(one) for one in catch_up(port, name)]
        assert told == {"from": f"{start:x}.0", "to": f"{end:x}.0"}

        cluster.stop(master, kill=True)  # another one has lost the same, and is asked itself
        wait_until(lambda: status(cluster, PROXY)["groups"][0]["master_epoch"] > epoch, "no other master is elected")
        cluster.start(master)  # as long as a replica is not reached, nothing is lost for good
        wait_until(
            lambda: (
                (one := status(cluster, PROXY)).get("lost") == found["lost"]
                and one["groups"][0]["lost_messages"] == 1
                and words in page(cluster, "/readyz").splitlines()
            ),
            "the new master's losses are not said",
        )
