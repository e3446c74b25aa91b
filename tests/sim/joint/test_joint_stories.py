"""Stories that a whole cluster has to live through; what its simulation has found is among them."""

import pytest

from store.base.errors import StoreError
from store.replication.master import Master
from tests.sim.joint.joint_clients import KeyClient
from tests.sim.joint.joint_cluster import GROUP_COUNT, End
from tests.sim.joint.joint_history import JointHistory, steady

ELECTED_S = 4.0  # a failover at worst


def test_a_seed_is_a_history():
    """Whoever repeats one that has failed gets the same one."""

    def told() -> tuple:
        history = JointHistory(11)
        history.play(2.0)
        loop = history.cluster.loop
        return history.watch.digest, loop.steps, loop.now_s, history.watch.operations

    assert told() == told()


@pytest.mark.parametrize("end", list(End))
def test_with_every_controller_down_traffic_goes_on(end):
    with steady(1, acknowledge="all_in_sync") as history:
        cluster, epochs = history.cluster, {number: one.master_epoch for number, one in history.watch.newest.items()}
        for controller in cluster.controllers:
            controller.crash(end)
        before = {client: client.done for client in history.everybody()}
        assert cluster.run(20, lambda: all(client.done > done + 2 for client, done in before.items()))
        cluster.run(6)  # longer than anybody is silent
        since = {client: client.done for client in history.everybody()}
        assert cluster.run(20, lambda: all(client.done > done + 2 for client, done in since.items()))
        history.heal()
        assert {number: one.master_epoch for number, one in history.watch.newest.items()} == epochs


@pytest.mark.parametrize("seed", range(2))
def test_a_master_that_is_started_again_with_the_controllers_is_succeeded_soon(seed):
    """Nobody has heard of the one that asks to be elected anew when it asks first, so it has to ask again."""
    with steady(seed) as history:
        cluster = history.cluster
        machines = [*cluster.controllers, *cluster.replicas]
        for machine in machines:
            machine.crash(End.DARK)
        cluster.run(1)
        for machine in machines:
            machine.start()
        assert cluster.run(ELECTED_S, lambda: all(cluster.master(group) for group in range(GROUP_COUNT)))
        history.heal()


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
@pytest.mark.parametrize("end", list(End))
def test_another_one_is_master_soon(acknowledge, end):
    with steady(5, acknowledge=acknowledge) as history:
        cluster = history.cluster
        for group in range(GROUP_COUNT):
            old = cluster.master(group)
            old.crash(end)
            assert cluster.run(ELECTED_S, lambda group=group: cluster.master(group) is not None)
            cluster.run(1)
            old.start()
            assert cluster.run(10, history.all_in_sync)
        history.heal()


@pytest.mark.parametrize("seed", range(2))
def test_a_master_that_only_its_clients_reach_acknowledges_nothing_more(seed):
    with steady(seed) as history:
        cluster = history.cluster
        old = cluster.master(0)
        history.cut([old], [one for one in history.others(old) if one not in cluster.proxies])
        confirmed = old.core.confirmed
        assert cluster.run(ELECTED_S, lambda: cluster.master(0) is not old)
        cluster.run(4)
        assert isinstance(old.core, Master)
        assert old.core.confirmed == confirmed
        assert isinstance(old.core.refusal, StoreError)
        assert cluster.master(0).core.confirmed > confirmed
        history.heal()


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_of_the_controllers_that_is_cut_off_changes_nothing(seed):
    with steady(seed) as history:
        cluster = history.cluster
        old = cluster.leader()
        history.cut([old], history.others(old))
        assert cluster.run(ELECTED_S, lambda: cluster.leader() not in {None, old})
        cluster.master(1).crash(End.DARK)
        assert cluster.run(ELECTED_S, lambda: cluster.master(1) is not None)
        epoch = old.node.state.groups[1].master_epoch
        assert history.watch.newest[1].master_epoch > epoch
        history.heal()


def test_a_planned_switch_over_fails_no_write():
    with steady(3) as history:
        cluster = history.cluster
        old = cluster.master(0)
        replica = next(one for one in cluster.replicas if one.group == 0 and one is not old)
        asked = old.process.run(old.node.switch_over(replica.id))
        assert cluster.run(2, lambda: cluster.master(0) is replica)
        assert asked.result() == replica.id
        history.heal()


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_who_follows_live_gets_every_frame_once_whoever_is_master(acknowledge):
    """Replicas do not know yet what their master has confirmed and told to clients when one of them is its successor.
    By quorum it cannot know before others have come, so it serves nobody before: clients would take it for a loss."""
    with steady(7, acknowledge=acknowledge) as history:
        cluster = history.cluster
        cluster.net.delay_s = (0.04, 0.05)
        for group in range(GROUP_COUNT):
            old = cluster.master(group)
            replicas = [one for one in cluster.replicas if one.group == group and one is not old]

            def ahead(old=old, replicas=replicas) -> bool:
                return old.core.confirmed > max(one.core.confirmed for one in replicas)

            assert cluster.run(20, ahead)
            links = history.cut([old], replicas)
            cluster.run(0.1)  # clients hear of it
            old.crash(End.KILLED)
            assert cluster.run(ELECTED_S, lambda group=group: cluster.master(group) is not None)
            cluster.net.mend(links)
            old.start()
            assert cluster.run(10, history.all_in_sync)
        history.heal()  # the watch checks all that a follower receives


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_a_master_that_one_proxy_still_follows_does_not_answer_for_the_newest_keys(acknowledge):
    """It has been succeeded, and neither it nor the proxy can know."""
    with steady(2, acknowledge=acknowledge) as history:
        cluster, proxy = history.cluster, history.cluster.proxies[1]
        [reads] = [one for one in history.clients[proxy.name] if isinstance(one, KeyClient)]
        [writes] = [one for one in history.clients["p1"] if isinstance(one, KeyClient)]
        reads.writes, writes.writes = 0.0, 1.0
        side = [cluster.master(0), proxy]
        history.cut(side, [one for one in cluster.machines if one not in side])
        assert cluster.run(ELECTED_S, lambda: cluster.master(0) not in {None, side[0]})
        done = writes.done
        assert cluster.run(10, lambda: writes.done > done + 5)
        cluster.run(1)
        history.heal()  # which looks at what was read


@pytest.mark.parametrize("seed", range(2))
def test_what_a_superseded_master_asks_for_late_changes_nothing(seed):
    """Cut off, it wants to go on alone; when its question reaches the controllers, another one is master."""
    with steady(seed, acknowledge="all_in_sync", min_in_sync=1) as history:
        cluster = history.cluster
        old = cluster.master(0)
        links = history.cut([old], history.others(old))
        assert cluster.run(ELECTED_S, lambda: cluster.master(0) not in {None, old})
        assert cluster.run(3, lambda: old.core._set.pending == {old.id})
        cluster.net.mend(links)
        assert cluster.run(5, lambda: not isinstance(old.core, Master))
        cluster.run(2)
        assert history.watch.newest[0].master != old.id
        history.heal()
