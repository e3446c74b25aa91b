"""Guards that fail in frames of several publishers, and messages of which no group is to have a part."""

import pytest

from gateway.domain.errors import Cause
from gateway.domain.idempotency import IdempotencyKey, KeyRepeated
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import Publish, Token
from gateway.port.marks import Fence, Marks
from store.api.log import Appended
from store.base.errors import QueueDropped, SequenceOutOfOrder, StoreUnreachable, TimersFull, TimerTooFar
from store.format.frame import FRAME_GUARDED
from store.guards.rows import guards_of
from tests.support.gateway.ingest_groups import message, publish_marked, two_groups
from tests.support.gateway.ingest_rig import SpreadRig
from tests.support.store.store_kit import placed

pytestmark = pytest.mark.anyio

MARKS = Marks("session-marks/s/", 0, {0: b"m"}, fence=Fence(b"n" * 16, 7))
KEY = IdempotencyKey(name=b"k" * 16, fingerprint=b"f", expires_at_ms=5)


@pytest.fixture
async def controller(tmp_path):
    async with two_groups(tmp_path) as controller:
        yield controller


def publish_keyed(rig, who, *messages):
    publisher = rig.publisher(who)
    rig.ingest.publish(publisher, Publish(messages, Token(1), key=KEY), 10)


def end_failing(log, *numbers):
    """Stores the log's next frame without the rows that these guards cover, and returns all its guards."""
    frame, done = log.waiting.pop(0)
    assert frame.flags & FRAME_GUARDED
    guards = guards_of(frame.rows)
    stored = log.frames[log.end] = placed(frame, log.end, stored_at_ms=5)
    log.end = stored.end
    done(Appended(stored.start, failed=tuple(guards[number].row for number in numbers)))
    return guards


async def test_a_publisher_whose_session_is_elsewhere_is_told_and_those_beside_it_are_stored(controller):
    rig = SpreadRig(controller)
    (a,) = rig.keys(0)
    rig.publish("before", 1, message(a, b"before"))
    publisher = rig.publisher("late")
    rig.ingest.publish(publisher, Publish([message(a), message(a)], Token(1), marks=MARKS), 10)
    rig.publish("behind", 1, message(a, b"behind"))
    rig.turn()
    (guard,) = end_failing(rig.store.logs[0], 0)
    assert (guard.first, guard.row, guard.name, guard.epoch) == (1, 3, b"n" * 16, 7)
    assert isinstance(rig.outcome("late").error, OwnershipLost)
    for who in ("before", "behind"):
        ((place,),) = rig.outcome(who).stored(1).values()
        assert who.encode() in rig.record(place)
    assert rig.ingest.idle


async def test_a_publisher_behind_a_fence_is_told_of_a_later_owner_by_every_group(controller):
    rig = SpreadRig(controller)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    rig.publish("before", 1, message(a, b"before"))
    publisher = rig.publisher("late")
    rig.ingest.publish(publisher, Publish([message(a), message(b)], Token(1), fence=Fence(b"n" * 16, 7)), 10)
    rig.turn()
    (guard,) = end_failing(rig.store.logs[0], 0)
    assert (guard.first, guard.row, guard.name, guard.epoch) == (1, 2, b"n" * 16, 7)
    (guard,) = end_failing(rig.store.logs[1])
    assert (guard.first, guard.row, guard.name, guard.epoch) == (0, 1, b"n" * 16, 7)
    assert isinstance(rig.outcome("late").error, OwnershipLost)
    assert rig.outcome("before").error is None


async def test_frames_without_a_fence_or_a_key_are_not_guarded(controller):
    rig = SpreadRig(controller)
    (a,) = rig.keys(0)
    publish_marked(rig, "p", 1, [message(a)], Marks("session-marks/s/", 0, {0: b"m"}))
    frame, _ = rig.store.logs[0].waiting[0]
    assert not frame.flags & FRAME_GUARDED
    assert guards_of(frame.rows) == []


async def test_a_key_that_was_used_before_is_said(controller):
    rig = SpreadRig(controller)
    (a,) = rig.keys(0)
    rig.publish("other", 1, message(a))
    publish_keyed(rig, "p", message(a), message(a, address="t/+"))
    rig.turn()
    (guard,) = end_failing(rig.store.logs[0], 0)
    assert (guard.first, guard.row, guard.once) == (1, 2, True)
    error = rig.outcome("p").error
    assert isinstance(error, KeyRepeated)
    assert (error.group, list(error.refused)) == (0, [1])
    assert rig.outcome("other").error is None


async def test_what_one_group_has_under_a_key_is_stored_in_the_other(controller):
    rig = SpreadRig(controller)
    (b,) = rig.keys(1)
    publish_keyed(rig, "p", message(b, retain=True))
    rig.turn()
    end_failing(rig.store.logs[1], 0)
    end_failing(rig.store.logs[0])
    assert rig.outcome("p").error is None
    assert rig.outcome("p").refused == {}


async def test_a_key_is_asked_for_where_the_answers_place_was(controller):
    rig = SpreadRig(controller)
    (b,) = rig.keys(1)
    publish_keyed(rig, "p", message(b, retain=True))
    rig.turn()
    end_failing(rig.store.logs[0], 0)
    end_failing(rig.store.logs[1], 0)
    assert rig.outcome("p").error.group == 1


async def test_nothing_is_stored_in_part_again_while_a_group_is_away(controller):
    rig = SpreadRig(controller)
    (a,), (b,) = rig.keys(0), rig.keys(1)
    away, there = rig.store.logs[1], rig.store.logs[0]
    rig.publish("p", 1, message(b, retain=True))  # the retained message is in group 0
    rig.turn()
    there.end_next()
    away.end_next(StoreUnreachable("no master"))
    assert rig.outcome("p", 1).error.cause is Cause.UNKNOWN  # in part, for once
    for token in range(2, 22):
        rig.publish("p", token, message(b, retain=True))
        rig.turn()
        assert rig.outcome("p", token).refused[0].cause is Cause.UNAVAILABLE
        assert there.waiting == []
        assert len(away.waiting) == 1  # asked, by a frame without effect, and not twice at a time
    rig.publish("p", 30, message(a), message(a, retain=True))
    rig.turn()
    there.end_next()
    assert rig.outcome("p", 30).error is None
    away.end_next(StoreUnreachable("no master"))
    rig.publish("p", 40, message(b, retain=True))
    rig.turn()
    away.end_next()
    rig.publish("p", 41, message(b, retain=True))
    rig.turn()
    rig.end_all()
    assert rig.outcome("p", 41).error is None
    assert rig.outcome("p", 41).refused == {}


@pytest.mark.parametrize("error", [QueueDropped, SequenceOutOfOrder, TimersFull, TimerTooFar])
async def test_a_group_that_refuses_a_frame_for_its_rows_takes_others(controller, error):
    rig = SpreadRig(controller)
    (b,) = rig.keys(1)
    rig.publish("p", 1, message(b))
    rig.turn()
    rig.store.logs[1].end_next(error("refused"))
    assert rig.outcome("p", 1).error is not None
    rig.publish("p", 2, message(b, retain=True))
    rig.turn()
    rig.end_all()
    assert (rig.outcome("p", 2).error, rig.outcome("p", 2).refused) == (None, {})
