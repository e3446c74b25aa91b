"""The watch over nodes in `make faults` finds those that say they are ready and are not."""

import pytest

from tests.support.cluster.readiness import WRONG_NODE_S, ControllerReadiness, StoreReadiness

MASTER = {
    "ready": True,
    "role": "master",
    "group": 0,
    "replica": 1,
    "master_epoch": 2,
    "sync_set": [1, 2],
    "damages": [],
}
REPLICA = {**MASTER, "role": "replica", "replica": 2}


def watched(*samples, every_s=WRONG_NODE_S):
    """Returns the reasons that some samples of a master and a replica lead to."""
    watch = StoreReadiness(["m", "r"], lambda _: None)
    for number, (master, replica) in enumerate(samples):
        watch.look({"m": master, "r": replica}, number * every_s)
    return [(one.node, one.why) for one in watch.wrong]


@pytest.mark.parametrize(
    ("master", "replica", "why"),
    [
        (MASTER, {**REPLICA, "damages": [{}]}, "damaged"),
        ({**MASTER, "sync_set": [1]}, REPLICA, "not in the SyncStateSet"),
        ({**MASTER, "role": "replica", "ready": False}, REPLICA, "no master"),
    ],
)
def test_a_replica_that_says_for_long_that_it_is_ready_and_is_not_is_found(master, replica, why):
    assert watched((MASTER, REPLICA), (master, replica), (master, replica)) == [("r", why)]
    assert watched((MASTER, REPLICA), (master, replica), (MASTER, REPLICA), (master, replica)) == []
    assert watched((MASTER, REPLICA), (master, replica), (master, {**replica, "ready": False})) == []


def test_learners_and_groups_whose_master_may_be_silent_are_not_held_against_a_replica():
    learner = {**REPLICA, "replica": 7}
    assert watched(*[(MASTER, learner)] * 3) == []
    assert watched(*[(None, REPLICA)] * 3) == []
    assert watched(*[(MASTER, None)] * 3) == []


def test_a_master_that_says_for_long_that_it_is_ready_and_has_a_successor_is_found():
    successor = {**REPLICA, "role": "master", "master_epoch": 3}
    assert watched(*[(MASTER, successor)] * 2) == [("m", "another master has a later epoch")]
    assert watched(*[({**MASTER, "ready": False}, successor)] * 2) == []
    assert watched(*[({**MASTER, "damages": [{}]}, REPLICA)] * 2) == [("m", "damaged")]


def test_a_node_that_says_for_long_that_it_is_ready_and_takes_nothing_is_found():
    def found(master, replica, **more):
        watch = StoreReadiness(["m", "r"], lambda _: None, **more)
        for number in range(2):
            watch.look({"m": master, "r": replica}, number * WRONG_NODE_S)
        return [(one.node, one.why) for one in watch.wrong]

    refusing = {**MASTER, "ready": False}
    assert found(MASTER, None, min_in_sync=2) == [("m", "fewer than min_in_sync")]
    assert found({**MASTER, "sync_set": [1]}, {**REPLICA, "replica": 7}, min_in_sync=2) == [
        ("m", "fewer than min_in_sync")
    ]
    assert found(MASTER, REPLICA, min_in_sync=2) == found(refusing, None, min_in_sync=2) == []
    for name in ("m", "r"):
        assert found(MASTER, REPLICA, full=name.__eq__) == [(name, "its disk is full")]
    assert found(refusing, {**REPLICA, "ready": False}, full=lambda _: True) == []


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"ready": True, "term": 4, "leader": None}, ["no leader"]),
        ({"ready": True, "term": 3, "leader": 1}, ["behind the term of another controller"]),
        ({"ready": False, "term": 3, "leader": None}, []),
        (None, []),
    ],
)
def test_a_controller_that_says_for_long_that_it_is_ready_and_is_not_is_found(status, why):
    leader = {"ready": True, "term": 4, "leader": 1}
    watch = ControllerReadiness(["1", "2"], lambda _: None)
    for number in range(2):
        watch.look({"1": leader, "2": status}, number * WRONG_NODE_S)
    assert [one.why for one in watch.wrong] == why
