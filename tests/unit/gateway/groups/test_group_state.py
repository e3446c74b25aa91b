"""The changes that a member of a consumer group is to make, by its group's keys alone."""

import pytest

from gateway.groups.state import GroupRecord, GroupState, MemberRecord, QueueRecord, Versioned, plan

NOW_MS, RELEASE_MS = 1_700_000_000_000, 30_000


def group(revoked_ms):
    """Returns a group in which one member has both queues, and the other one should have the second."""
    members = {name: Versioned(MemberRecord("t", "", 60_000), 2) for name in ("a", "b")}
    queues = {
        1: Versioned(QueueRecord(0, "a", 1), 3),
        2: Versioned(QueueRecord(0, "a", 1, revoked_ms), 3),
    }
    return GroupState("g", 4, Versioned(GroupRecord("t", "averaged"), 1), members, queues)


@pytest.mark.parametrize(
    ("revoked_ms", "member", "marked_ms"),
    [
        (0, "a", NOW_MS),
        (NOW_MS - RELEASE_MS, "", 0),
        (NOW_MS + 3_600_000, "a", NOW_MS),  # marked before the clock was set back
    ],
)
def test_a_queue_that_should_be_anothers_is_marked_and_released_in_time(revoked_ms, member, marked_ms):
    changes = plan(group(revoked_ms), "a", [1, 2], None, now_ms=NOW_MS, release_ms=RELEASE_MS).changes
    assert {queue: (one.member, one.revoked_ms) for queue, one in changes.items()} == {2: (member, marked_ms)}


def test_a_queue_that_is_marked_waits_for_its_time():
    marked = group(NOW_MS - RELEASE_MS + 1)
    assert plan(marked, "a", [1, 2], None, now_ms=NOW_MS, release_ms=RELEASE_MS).changes == {}
