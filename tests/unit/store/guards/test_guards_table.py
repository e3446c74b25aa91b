"""Guards hold against what the views know, what is ahead of them, and what was taken back."""

import pytest

from store.api.kv_rules import KeySpace, SlotContent, slot
from store.format.frame import FRAME_GUARDED, ROW, LogOffset, UnplacedFrame
from store.format.records import VOID_QUEUE
from store.guards import table as table_module
from store.guards.rows import FENCES, fence_record, guard_row, guards_of
from store.guards.table import GuardTable, ViewQueries

QUEUE = 16
NAME, OTHER = b"n" * 16, b"o" * 16
NOW_MS = 1_000


class Views:
    def __init__(self):
        self.slots = {}
        self.keys = 0
        self.dispatched = LogOffset(0)
        self.looked = 0

    def held(self, at):
        self.looked += 1
        return self.slots.get(at)

    def fence(self, name, epoch):
        value = fence_record(name, epoch)
        self.slots[slot(FENCES, name.hex())] = SlotContent(1, 1, 0, 1, 0, epoch.to_bytes(8, "big"))
        return value

    def key(self, name, frame, row, expires_at_ms=0):
        self.slots[slot("$once", name.hex())] = SlotContent(frame + row + 1, 1, expires_at_ms, 1, 0, b"")


@pytest.fixture
def views():
    return Views()


@pytest.fixture
def table(views):
    return GuardTable(ViewQueries(views.held, lambda _: KeySpace(views.keys), lambda: views.dispatched))


def message(body=b"m"):
    return ROW.pack(QUEUE, 0, len(body), 0, 1, 2, 3, 4)


def frame(*rows):
    return UnplacedFrame.build(b"".join(rows), b"m" * 8, flags=FRAME_GUARDED)


def fence(epoch, name=NAME, covers=0):
    return guard_row(0, 1, name, covers=covers, epoch=epoch)


def once(name=NAME, covers=0):
    return guard_row(0, 1, name, covers=covers, once=True)


def put(table, at, *rows):
    """Admits a frame and gives it a place; returns the guards that failed."""
    admitted = table.admit(frame(*rows), NOW_MS)
    table.add(admitted.holding, LogOffset(at))
    table.keep()
    return admitted.failed


def queues(unplaced):
    return [queue for queue, *_ in ROW.iter_unpack(unplaced.rows)]


def test_rows_say_what_they_guard():
    (one,) = guards_of(message() + message() + fence(7, covers=2))
    assert one == (2, 0, NAME, 7, False)
    assert guards_of(fence(7, covers=9))[0].first == 0  # no more than there are
    assert guards_of(once())[0].once
    assert guards_of(message()) == []


def test_only_the_rows_of_the_guard_that_fails_mean_nothing(table):
    put(table, 0, fence(9))
    given = frame(message(), message(), fence(5, covers=1), message(), fence(9, covers=1), message())
    admitted = table.admit(given, NOW_MS)
    assert admitted.failed == (2,)
    assert queues(admitted.frame) == [QUEUE, VOID_QUEUE, VOID_QUEUE, QUEUE, 1, QUEUE]
    assert admitted.frame == UnplacedFrame.build(admitted.frame.rows, given.payload, flags=FRAME_GUARDED)
    assert [one.row for one in admitted.holding] == [4]


def test_a_frame_whose_guards_hold_is_stored_as_it_is(table):
    given = frame(message(), fence(9, covers=1))
    assert table.admit(given, NOW_MS).frame is given


def test_owners_before_are_refused_and_later_ones_are_not(table):
    assert put(table, 0, fence(5)) == ()
    assert put(table, 1, fence(5)) == ()
    assert put(table, 2, fence(9)) == ()
    assert put(table, 3, fence(5)) == (0,)
    assert put(table, 4, fence(5, OTHER)) == ()


def test_fences_in_the_views_count(table, views):
    views.fence(NAME, 9)
    assert put(table, 0, fence(5)) == (0,)
    assert put(table, 1, fence(9)) == ()
    looked = views.looked
    put(table, 2, fence(9))
    assert views.looked == looked  # it is at hand


def test_what_the_views_have_is_looked_up_anew_when_it_is_not_ahead_any_more(table, views):
    put(table, 10, fence(5))
    put(table, 20, fence(9))
    views.fence(NAME, 9)
    views.dispatched = LogOffset(30)
    put(table, 40, fence(1, OTHER))
    assert put(table, 50, fence(5)) == (0,)


def test_a_key_is_taken_once(table, views):
    assert put(table, 0, message(), once(covers=1)) == ()
    assert put(table, 1, message(), once(covers=1)) == (1,)
    assert put(table, 2, once(OTHER), once(OTHER)) == (1,)
    views.key(b"v" * 16, 5, 0)
    assert put(table, 3, once(b"v" * 16)) == (0,)
    views.key(b"e" * 16, 5, 0, expires_at_ms=NOW_MS)
    assert put(table, 4, once(b"e" * 16)) == ()  # it was forgotten


def test_a_frame_that_is_sent_again_hears_of_its_own_guards(table, views):
    put(table, 8, once(), once())
    sent = frame(once(), once())
    assert table.failed(sent, LogOffset(8), NOW_MS) == (1,)
    views.key(NAME, 8, 0)
    views.dispatched = LogOffset(100)
    put(table, 100, once(OTHER))
    assert table.failed(sent, LogOffset(8), NOW_MS) == (1,)
    assert table.failed(frame(fence(5)), LogOffset(8), NOW_MS) == ()
    put(table, 200, fence(9))
    assert table.failed(frame(fence(5)), LogOffset(8), NOW_MS) == (0,)


def test_what_was_taken_back_was_not_said(table):
    put(table, 0, fence(5))
    table.add(table.admit(frame(fence(9), once()), NOW_MS).holding, LogOffset(1))
    assert table.admit(frame(fence(5), once()), NOW_MS).failed == (0, 1)
    table.take_back()
    assert table.admit(frame(fence(5), once()), NOW_MS).failed == ()


def test_keys_are_bounded(table, views, monkeypatch):
    monkeypatch.setattr(table_module, "ONCE_KEYS_MAX", 3)
    views.keys = 2
    assert put(table, 0, once()) == ()
    assert put(table, 1, once(OTHER)) == (0,)


def test_a_log_that_is_there_is_followed(table):
    table.follow(frame(fence(9), once()), LogOffset(0))
    assert put(table, 1, fence(5), once()) == (0, 1)
