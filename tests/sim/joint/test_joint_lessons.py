"""Defects of others' replicated logs, each as a story of a whole cluster. Numbers are RocketMQ's issues."""

import pytest

from store.base.errors import StoreError
from store.replication.master import Master
from tests.sim.joint.joint_clients import KeyClient
from tests.sim.joint.joint_cluster import REPLICA_COUNT, End
from tests.sim.joint.joint_history import steady

ELECTED_S = 4.0  # a failover at worst
STALLED_S = 5.0  # until a master whose replicas do not answer refuses (`ReplicationPace.stall_ms`), by a slow clock
PATIENCE_S = 10.0


def replicas(history, group=0):
    """Returns the master of a group, and its replicas."""
    master = history.cluster.master(group)
    return master, [one for one in history.cluster.replicas if one.group == group and one is not master]


def set_of(history, group=0):
    return set(history.watch.newest[group].sync_set)


def test_a_master_that_a_replica_still_follows_does_not_answer_for_the_newest_keys():
    """Half of the group does not know of the new master yet, which takes writes alone: reads of keys wait."""
    with steady(2, acknowledge="all_in_sync", min_in_sync=1) as history:
        cluster = history.cluster
        old, (other, elected) = replicas(history)
        [reads] = [one for one in history.clients["p2"] if isinstance(one, KeyClient)]
        [writes] = [one for one in history.clients["p1"] if isinstance(one, KeyClient)]
        reads.writes, writes.writes = 0.0, 1.0
        side = [old, other, cluster.proxies[1]]
        history.cut(side, [one for one in cluster.machines if one not in side])
        assert cluster.run(ELECTED_S, lambda: cluster.master(0) is elected)
        done = writes.done
        assert cluster.run(PATIENCE_S, lambda: writes.done > done + 5)
        cluster.run(1)
        history.heal()  # which looks at what was read


def test_a_master_that_acknowledges_alone_stops_soon_after_it_is_cut_off():
    with steady(1, acknowledge="master", min_in_sync=1) as history:
        cluster = history.cluster
        old, _ = replicas(history)
        history.cut([old], [one for one in history.others(old) if one not in cluster.proxies])
        assert cluster.run(STALLED_S, lambda: isinstance(getattr(old.core, "refusal", None), StoreError))
        end = old.platter.log.end
        cluster.run(1)
        assert isinstance(old.core, Master)
        assert old.platter.log.end == end
        history.heal()


def test_a_dead_replica_leaves_the_set_and_a_live_one_stays():
    """10875: liveness was negated twice, so that the dead stayed."""
    with steady(3, acknowledge="all_in_sync") as history:
        _, (dead, _) = replicas(history)
        dead.crash(End.DARK)
        live = set_of(history) - {dead.id}
        assert history.cluster.run(PATIENCE_S, lambda: set_of(history) == live)
        history.cluster.run(2)
        assert set_of(history) == live
        history.heal()


@pytest.mark.parametrize("seed", range(2))
def test_a_send_without_an_answer_is_stored_once_however_often_it_is_repeated(seed):
    """348, 2471: what timed out may have been stored, and the answer to its repetition says where."""
    with steady(seed, acknowledge="all_in_sync") as history:
        cluster = history.cluster
        cluster.net.loss, cluster.net.resets = 0.1, 0.01
        for end in End:
            cluster.run(0.7)
            history.crash(cluster.master(0) or replicas(history)[1][0], 0.3, end)
        cluster.run(2)
        before = history.watch.acknowledgements
        history.heal()  # that nothing is there twice is looked at in every step
        assert history.watch.acknowledgements > before


@pytest.mark.parametrize("seed", range(2))
def test_readers_stop_at_what_is_confirmed(seed):
    """A reader of the faster replica would have seen what a failover to the slower one takes away."""
    with steady(seed, acknowledge="all_in_sync") as history:
        cluster = history.cluster
        for end in End:
            master, (fast, slow) = replicas(history)
            fast.disk_s, slow.disk_s = (0.0, 0.001), (0.02, 0.08)
            cluster.run(0.5)
            master.crash(end)
            assert cluster.run(ELECTED_S, lambda: cluster.master(0) is not None)
            master.start()
            assert cluster.run(PATIENCE_S, history.all_in_sync)
        history.heal()


def test_a_replica_behind_the_beginning_of_the_log_starts_from_a_snapshot():
    with steady(4, acknowledge="all_in_sync") as history:
        master, (replica, _) = replicas(history)
        replica.crash(End.KILLED)
        behind = replica.platter.log.end
        assert history.cluster.run(PATIENCE_S, lambda: replica.id not in set_of(history))
        while master.platter.log.first <= behind:
            history.cluster.run(0.2)
            master.platter.trim()
        replica.start()
        assert history.cluster.run(PATIENCE_S, lambda: replica.id in set_of(history))
        assert replica.platter.log.first > behind
        history.heal()


def test_without_controllers_nobody_lets_a_dead_replica_go():
    """A frame that the replica would need is not acknowledged, so it is not missing where it may be elected."""
    with steady(1, acknowledge="all_in_sync") as history:
        cluster = history.cluster
        master, (replica, _) = replicas(history)
        for controller in cluster.controllers:
            controller.crash(End.KILLED)
        replica.crash(End.KILLED)
        cluster.run(0.5)
        confirmed = master.core.confirmed
        cluster.run(3)
        assert master.core.confirmed == confirmed
        assert len(set_of(history)) == REPLICA_COUNT
        history.heal()


def test_a_frame_is_acknowledged_again_only_when_enough_have_it():
    """A repetition that the new master finds in its log is not safe because it is there."""
    with steady(5, acknowledge="all_in_sync") as history:
        cluster = history.cluster
        old, others = replicas(history)
        for one in others:
            one.disk_s = (0.03, 0.06)

        def is_ahead() -> bool:
            return min(one.platter.log.end for one in others) > old.core.confirmed

        assert cluster.run(PATIENCE_S, is_ahead)
        old.crash(End.DARK)
        cluster.run(3)  # on how many disks each answer's frame is, is looked at in every step
        assert cluster.master(0) in others
        old.start()
        history.heal()


@pytest.mark.parametrize(("replicas_", "learners"), [(1, 0), (1, 1), (2, 0), (5, 1)])
def test_groups_of_any_size_fail_over_and_learners_are_never_elected(replicas_, learners):
    with steady(
        6, acknowledge="all_in_sync", replicas=replicas_, learners=learners, min_in_sync=min(2, replicas_)
    ) as history:
        cluster = history.cluster
        for _ in range(2):
            old, _ = replicas(history)
            lives = old.lives
            history.crash(old, 1.0, End.RESET)

            def is_well(old=old, lives=lives) -> bool:
                return old.lives > lives and cluster.master(0) is not None and history.all_in_sync()

            assert cluster.run(PATIENCE_S, is_well)
            assert not cluster.master(0).learner
        learning = [one.id for one in cluster.replicas if one.group == 0 and one.learner]
        assert len(learning) == learners
        assert not set_of(history) & set(learning)
        history.heal()  # which wants the learner to have everything
