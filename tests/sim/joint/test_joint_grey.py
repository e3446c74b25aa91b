"""Masters that the controllers hear and nobody else reaches, in a whole cluster: it serves again soon."""

import pytest

from tests.sim.joint.joint_history import steady

SERVES_S = 6.0  # two or three until complaints count, an election, and clients that connect again
SLOW_S = 20.0  # three syncs that are slow, and the wait of the master for handing over by itself
REST_S = 8.0  # in which nothing more is to happen
FLAP_S = 45.0


def epoch(history, group=0):
    return history.watch.newest[group].master_epoch


def goes_on(history, group, old):
    """Returns whether another one is master and its clients get on."""
    cluster = history.cluster
    before = {client: client.done for client in history.everybody()}
    begun = cluster.loop.now_s

    def again() -> bool:
        master = cluster.master(group)
        if master in {None, old}:
            return False
        return all(client.done > done for client, done in before.items() if client.busy)

    assert cluster.run(SERVES_S, again), history.describe()
    return cluster.loop.now_s - begun


@pytest.mark.parametrize(
    ("acknowledge", "way"),
    [("all_in_sync", "both"), ("all_in_sync", "from"), ("all_in_sync", "to"), ("quorum", "both")],
)
def test_a_master_that_only_the_controllers_reach_is_succeeded(acknowledge, way):
    with steady(21, acknowledge=acknowledge) as history:
        cluster = history.cluster
        old = cluster.master(0)
        assert epoch(history) == 1
        history.grey(0, way=way, whom="all")
        goes_on(history, 0, old)
        cluster.run(REST_S)
        assert epoch(history) <= (3 if acknowledge == "quorum" else 2)
        history.heal()


def test_a_master_that_its_replicas_reach_and_no_proxy_is_succeeded():
    with steady(22, acknowledge="all_in_sync") as history:
        cluster = history.cluster
        old = cluster.master(0)
        history.grey(0, way="both", whom="proxies")
        goes_on(history, 0, old)
        cluster.run(REST_S)
        assert epoch(history) == 2
        history.heal()


@pytest.mark.parametrize("min_in_sync", [1, 2])
def test_a_master_that_proxies_reach_and_no_replica_is_succeeded(min_in_sync):
    """Also where the set could become the master alone: it does not while replicas that live hear nothing from it."""
    with steady(23, acknowledge="all_in_sync", min_in_sync=min_in_sync) as history:
        cluster = history.cluster
        old = cluster.master(0)
        history.grey(0, way="both", whom="replicas")
        goes_on(history, 0, old)
        cluster.run(REST_S)
        assert epoch(history) == 2
        history.heal()


def test_a_master_whose_disk_is_slow_is_succeeded():
    with steady(24, acknowledge="all_in_sync") as history:
        cluster = history.cluster
        old = cluster.master(0)
        old.disk_s = (2.5, 3.0)
        assert cluster.run(SLOW_S, lambda: cluster.master(0) not in {None, old}), history.describe()
        history.heal()


@pytest.mark.parametrize("seed", range(2))
def test_links_that_fail_again_and_again_make_few_elections(seed):
    with steady(30 + seed, acknowledge="all_in_sync") as history:
        cluster, chance = history.cluster, history.chance
        group = [one for one in cluster.replicas if one.group == 0]
        until = cluster.loop.now_s + FLAP_S
        while cluster.loop.now_s < until:
            one, other = chance.sample([*group, *cluster.proxies], 2)
            links = [(one.name, other.name)]
            cluster.net.cut.update(dict.fromkeys(links))
            history.later(chance.uniform(1, 15), cluster.net.mend, links)
            cluster.run(chance.uniform(0.5, 4))
        assert epoch(history) - 1 <= 4  # at once, and after 10, 20 and 40 s
        history.heal()
