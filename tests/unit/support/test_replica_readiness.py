"""The watch over replicas in `make faults` finds those that say they are ready and are not."""

import pytest

from tests.support.cluster.readiness import WRONG_REPLICA_S, ReplicaReadiness

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


def watched(*samples, every_s=WRONG_REPLICA_S):
    """Returns the reasons that some samples of a master and a replica lead to."""
    watch = ReplicaReadiness(["m", "r"], lambda _: None)
    for number, (master, replica) in enumerate(samples):
        watch.look({"m": master, "r": replica}, number * every_s)
    return [(one.replica, one.why) for one in watch.wrong]


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
