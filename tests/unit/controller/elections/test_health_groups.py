"""The health of a store group is what somebody who publishes to it would get."""

import msgspec
import pytest

from controller.api.client import Group, GroupConfig, Replica
from controller.elections.health import GroupHealth, cluster_health, group_health
from controller.elections.registry import GroupRoute, RouteReplica

REPLICAS = tuple(Replica(id=n, node=f"n{n}", address=f"10.0.0.{n}:8081", learner=n == 4) for n in (1, 2, 3, 4))
GROUP = Group(
    number=1,
    config=GroupConfig(replicas=3, min_in_sync=2),
    replicas=REPLICAS,
    master=2,
    master_epoch=7,
    sync_set=(1, 2, 3),
    sync_epoch=11,
)


def heard(id_, **what):
    said = {"alive": True, "in_sync": True, "learner": id_ == 4, "confirmed": 9}
    return RouteReplica(id=id_, node=f"n{id_}", address=f"10.0.0.{id_}:8081", zone="", **said | what)


def route(**of):
    replicas = tuple(heard(n, **of.get(f"r{n}", {})) for n in (1, 2, 3, 4))
    return GroupRoute(group=1, master=2, master_epoch=7, replicas=replicas)


def changed(**what):
    return msgspec.structs.replace(GROUP, **what)


def test_all_is_well():
    health = group_health(GROUP, route())
    assert health == GroupHealth(1, (), (), 3, 0)
    assert health.writable


def test_little_room_on_the_disk_of_the_master_is_known():
    assert [group_health(GROUP, route(**{f"r{n}": {"low": True}})).low for n in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    ("group", "known", "options", "words"),
    [
        (changed(master=None), route(r1={"alive": False}), {}, "it has no master; 3 of 4 replicas are alive"),
        (
            changed(master=None, sync_set=(1,)),
            route(r1={"alive": False}),
            {},
            "it has no master; 3 of 4 replicas are alive; it waits for one that was in sync (1): if none comes back, "
            "headgate cluster elect 1 --unclean elects another one, without the writes that only they had",
        ),
        (  # after `controller recover`, or before the first election
            changed(master=None, sync_set=()),
            route(r1={"alive": False}),
            {},
            "it has no master; 3 of 4 replicas are alive; it waits for all (1): headgate cluster replicas forget 1 "
            "REPLICA takes out one that is gone for good",
        ),
        (
            changed(master=None, sync_set=(), replicas=REPLICAS[:1]),
            GroupRoute(group=1, master=None, master_epoch=7, replicas=(heard(1),)),
            {},
            "it has no master; 1 of 1 replicas are alive, of 3 that it is meant to have: it waits for more, or for "
            "headgate cluster elect 1, which elects one of these",
        ),
        (  # by quorum, and after `controller recover`
            changed(master=None, config=GroupConfig(replicas=3, min_in_sync=2, acknowledge="quorum")),
            route(r1={"promised": 6}, r2={"promised": 7}, r3={"promised": 6, "full": True}),
            {},
            "it has no master; 4 of 4 replicas are alive; it waits until epoch 7 is on the disk of 1, 3; the "
            "disk is full at 3 (store.disk_reserve_bytes)",
        ),
        (  # others are missing before the disks
            changed(master=None, config=GroupConfig(replicas=3, min_in_sync=2, acknowledge="quorum")),
            route(r1={"promised": 6}, r2={"alive": False}, r3={"alive": False}),
            {},
            "it has no master; 2 of 4 replicas are alive",
        ),
        (
            changed(master=None, config=GroupConfig(replicas=3, min_in_sync=2, acknowledge="quorum")),
            route(r1={"promised": 6}, r2={"promised": 7}, r3={"promised": 7}),
            {},
            "it has no master; 4 of 4 replicas are alive",
        ),
        (
            changed(master=None, sync_set=()),
            route(r1={"promised": 6}, r4={"promised": 6}),
            {},
            "it has no master; 4 of 4 replicas are alive; it waits until epoch 7 is on the disk of 1",
        ),
        (
            changed(master=None),
            route(r1={"promised": 6}),
            {},
            "it has no master; 4 of 4 replicas are alive",
        ),
        (GROUP, route(), {"reached": False}, "its master, replica 2 at 10.0.0.2:8081, is not reached"),
        (
            changed(sync_set=(2,)),
            route(),
            {},
            "writes are refused: 1 of its replicas are in sync, and min_in_sync is 2",
        ),
        (
            GROUP,
            route(r2={"full": True, "stalled": True}),
            {},
            "writes are refused: the disk of its master, replica 2 at 10.0.0.2:8081, is full "
            "(store.disk_reserve_bytes)",
        ),
        (
            GROUP,
            route(),
            {"refused": "1 of 2 replicas answer"},
            "writes are refused by its master, replica 2 at 10.0.0.2:8081: 1 of 2 replicas answer",
        ),
        (GROUP, route(r2={"stalled": True}), {}, "its master, replica 2 at 10.0.0.2:8081, takes no writes for now"),
    ],
)
def test_what_is_not_stored_is_said(group, known, options, words):
    health = group_health(group, known, **options)
    assert health.refusals == (f"store group 1: {words}",)
    assert not health.writable


@pytest.mark.parametrize(
    ("group", "known", "words"),
    [
        (GROUP, route(r3={"alive": False}), "replica 3 (n3) sends no heartbeats"),
        (
            GROUP,
            route(r2={"alive": False}),
            "replica 2 (n2) sends no heartbeats, and it is the master: writes may be refused",
        ),
        (
            changed(sync_set=(1, 2)),
            route(),
            "replica 3 (n3) is not in sync: it does not count for acknowledgements",
        ),
        (GROUP, route(r1={"full": True}), "replica 1 (n1) has a full disk"),
        (
            GROUP,
            route(r1={"expired": True}),
            "replica 1 (n1) has a certificate that has expired: others cannot connect to it",
        ),
        (
            GROUP,
            route(r1={"damages": 2, "damaged_bytes": 700, "lost_bytes": 100}),
            "replica 1 (n1) has 2 damaged ranges of its log, 700 bytes, 100 bytes of them on no replica",
        ),
        (
            changed(config=GroupConfig(replicas=5, min_in_sync=2)),
            route(),
            "it has 3 of the 5 replicas that it is meant to have",
        ),
    ],
)
def test_what_the_next_failure_would_meet_is_said(group, known, words):
    health = group_health(group, known)
    assert health.warnings == (f"store group 1: {words}",)
    assert health.writable


@pytest.mark.parametrize(
    ("sync_set", "silent", "in_sync"),
    [((1, 2, 3), (), 3), ((1, 2, 3), (1, 3), 1), ((1, 2), (3,), 2), ((1, 2), (1,), 1)],
)
def test_a_replica_counts_as_in_sync_unless_it_is_said_to_be_silent_or_behind(sync_set, silent, in_sync):
    """The metric counted dead replicas that their master could not take out of its set."""
    health = group_health(changed(sync_set=sync_set), route(**{f"r{n}": {"alive": False} for n in silent}))
    assert health.in_sync == in_sync
    assert len(health.warnings) == 3 - in_sync


def test_nothing_is_invented_where_no_controller_answers():
    assert group_health(GROUP, None) == GroupHealth(1, (), (), 3, 0)


HOME, OTHER = GroupHealth(0, in_sync=3), GroupHealth(1, in_sync=3, warnings=("w1",))
NO_HOME, NO_OTHER = HOME._replace(refusals=("r0",)), OTHER._replace(refusals=("r1",))


@pytest.mark.parametrize(
    ("groups", "reasons", "warnings"),
    [
        ([HOME, OTHER], (), ("w1",)),
        ([HOME, NO_OTHER], (), ("r1", "w1")),
        ([NO_HOME, OTHER], ("r0",), ("w1",)),
        ([NO_HOME, NO_OTHER], ("r0", "r1"), ("w1",)),
        ([NO_HOME], ("r0",), ()),
        ([], (), ()),
    ],
)
def test_a_proxy_serves_while_the_home_group_and_any_group_do(groups, reasons, warnings):
    assert cluster_health(groups, home=0) == (reasons, warnings)


def test_a_master_that_acknowledges_alone_takes_writes_whoever_is_in_sync():
    alone = changed(sync_set=(2,))
    assert not group_health(alone, route()).writable
    config = msgspec.structs.replace(GROUP.config, acknowledge="master")
    assert group_health(changed(sync_set=(2,), config=config), route()).writable
