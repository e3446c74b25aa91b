"""Storage that lies in a whole cluster, each as a story of its own."""

import pytest

from store.format.frame import LogOffset
from tests.sim.joint.joint_cluster import REPLICA_COUNT, End
from tests.sim.joint.joint_history import steady

PATIENCE_S = 10.0


def replicas(history, group=0):
    """Returns the master of a group, and its replicas."""
    master = history.cluster.master(group)
    return master, [one for one in history.cluster.replicas if one.group == group and one is not master]


def is_repaired(*some):
    return lambda: not any(one.platter.surface.spoiled or one.platter.surface.damages for one in some)


def set_of(history, group=0):
    return set(history.watch.newest[group].sync_set)


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_a_damaged_replica_is_repaired_and_in_the_set_again(acknowledge):
    with steady(11, acknowledge=acknowledge) as history:
        _, (replica, _) = replicas(history)
        assert history.spoil(replica, 3)
        assert history.cluster.run(PATIENCE_S, is_repaired(replica))
        assert history.cluster.run(PATIENCE_S, lambda: len(set_of(history)) == REPLICA_COUNT)
        history.heal()


def test_a_damaged_master_is_repaired_while_it_serves():
    with steady(12) as history:
        master, _ = replicas(history)
        epoch = history.watch.newest[0].master_epoch
        assert history.spoil(master, 3)
        assert history.cluster.run(PATIENCE_S, is_repaired(master))
        assert history.watch.newest[0].master_epoch == epoch
        history.heal()


def test_a_master_that_nobody_repairs_hands_over_to_a_sound_replica():
    with steady(13) as history:
        master, others = replicas(history)
        for one in others:
            one.node.services.ranges = None
        assert history.spoil(master, 3)
        assert history.cluster.run(15, lambda: history.cluster.master(0) in others)
        history.cluster.run(1)
        for one in others:  # started again, they answer
            one.crash(End.KILLED)
            one.start()
        assert history.cluster.run(PATIENCE_S, is_repaired(master))
        history.heal()


def test_replicas_with_different_damages_repair_each_other():
    with steady(14) as history:
        master, others = replicas(history)
        hurt = [one for one in (master, *others) if history.spoil(one, 2)]
        assert len(hurt) == REPLICA_COUNT
        assert history.cluster.run(PATIENCE_S, is_repaired(*hurt))
        history.heal()


def test_a_damaged_replica_is_not_elected_when_the_master_dies():
    with steady(15, acknowledge="all_in_sync") as history:
        master, (hurt, sound) = replicas(history)
        sound.node.services.ranges = None
        master.node.services.ranges = None
        assert history.spoil(hurt, 2)
        assert history.cluster.run(PATIENCE_S, lambda: hurt.id not in set_of(history))
        master.crash(End.KILLED)
        assert history.cluster.run(PATIENCE_S, lambda: history.cluster.master(0) is sound)
        master.start()
        assert history.cluster.run(PATIENCE_S, is_repaired(hurt))
        history.heal()


def test_an_emptied_replica_is_filled_from_a_master_whose_log_is_damaged():
    with steady(16) as history:
        master, (empty, _) = replicas(history)
        empty.crash(End.KILLED)
        assert history.cluster.run(PATIENCE_S, lambda: empty.id not in set_of(history))
        empty.platter.begin_anew(empty.platter.origin, type(empty.platter.views)(empty.platter.origin))
        empty.platter.said = empty.platter.origin
        assert history.spoil(master, 3)
        empty.start()
        assert history.cluster.run(PATIENCE_S, lambda: len(set_of(history)) == REPLICA_COUNT)
        assert is_repaired(master, empty)()
        history.heal()


@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
def test_a_replica_that_has_lost_the_end_of_its_log_is_not_elected_and_is_filled_again(acknowledge):
    with steady(17, acknowledge=acknowledge) as history:
        master, (short, sound) = replicas(history)
        assert history.cluster.run(PATIENCE_S, lambda: len(short.platter.log.starts) > 20)
        short.crash(End.DARK)
        log = short.platter.log
        short.platter.lose_end(LogOffset(log.starts[-8]))
        links = history.cut([short], [master, sound])
        short.start()
        assert history.cluster.run(PATIENCE_S, lambda: short.id not in set_of(history))
        master.crash(End.KILLED)
        history.cluster.run(4)
        assert history.cluster.master(0) is not short
        master.start()
        history.cluster.net.mend(links)
        assert history.cluster.run(PATIENCE_S, is_repaired(short))
        history.heal()


def test_the_tail_of_a_former_master_that_a_replica_has_lost_does_not_hold_up_the_group():
    """It was on one replica's disk and never confirmed. All three have to be in sync for a write."""
    with steady(12, min_in_sync=3) as history:
        cluster = history.cluster
        master, (heir, short) = replicas(history)
        epoch, confirmed = history.watch.newest[0].master_epoch, short.platter.log.end
        history.cut([heir], [one for one in cluster.machines if one is not heir and one not in cluster.controllers])
        assert cluster.run(PATIENCE_S, lambda: short.platter.log.durable > confirmed + 400)
        for one in (master, short):
            one.crash(End.DARK)
        end = heir.platter.log.end
        places = [start for start in short.platter.log.starts if start >= end]
        assert places
        short.platter.lose_end(LogOffset(places[0]))
        cluster.net.mend(list(cluster.net.cut))
        assert cluster.run(PATIENCE_S, lambda: history.watch.newest[0].master_epoch > epoch)
        assert cluster.run(PATIENCE_S, lambda: cluster.master(0) is heir)
        for one in (master, short):
            one.start()
        assert cluster.run(PATIENCE_S, is_repaired(short))
        assert cluster.run(PATIENCE_S, lambda: len(set_of(history)) == REPLICA_COUNT)
        history.heal()


def elected_hurt(history, *, ranges=True):
    """Returns the dead master, a replica that was elected with undetected damage behind its views, and a third
    replica.

    The latter sends `ranges`, or none.
    """
    cluster = history.cluster
    master, (hurt, third) = replicas(history)
    third.node.services.ranges = third.node.services.ranges if ranges else None
    hurt.node.disk.store.confirm = lambda *_: None
    applied = hurt.platter.views.applied
    assert cluster.run(PATIENCE_S, lambda: hurt.platter.log.durable > applied + 400)
    hurt.platter.surface.scrub = lambda: None
    hurt.platter.surface.spoil(min(start for start in hurt.platter.log.starts if start >= applied))
    links = history.cut([third], cluster.controllers)
    cluster.run(3)
    assert hurt.id in set_of(history)
    master.crash(End.KILLED)
    assert cluster.run(PATIENCE_S, lambda: history.watch.newest[0].master == hurt.id)
    cluster.net.mend(links)
    return master, hurt, third


def test_an_elected_replica_is_repaired_where_its_views_have_not_followed_before_it_leads():
    with steady(18, acknowledge="all_in_sync") as history:
        master, hurt, _ = elected_hurt(history)
        assert history.cluster.run(PATIENCE_S, lambda: history.cluster.master(0) is hurt)
        assert hurt.platter.surface.repaired == 1
        master.start()
        history.heal()


def test_an_elected_replica_waits_for_the_one_that_has_what_its_views_have_not_followed():
    with steady(19, acknowledge="all_in_sync") as history:
        master, hurt, _ = elected_hurt(history, ranges=False)
        history.cluster.run(25)
        assert history.cluster.master(0) is None
        master.start()
        assert history.cluster.run(PATIENCE_S, lambda: history.cluster.master(0) is hurt)
        assert is_repaired(hurt)()
        history.heal()
