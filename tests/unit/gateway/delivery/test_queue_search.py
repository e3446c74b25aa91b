"""A part of a queue read for some addresses, over a real store: order, pages, times, bounds and damage."""

import pytest

from gateway.delivery import queue_search
from gateway.delivery.queue_search import LOOKED_MAX, read_queue
from gateway.domain.errors import Cause, Refusal
from gateway.port.reads import ReadQueue
from store.api.message import Message
from store.base.errors import CorruptFrame, OffsetOutOfRange
from store.format.frame import FEW_ROWS, FIRST_QUEUE, ROW_EXTRA, Position
from store.local.local import LocalStore
from tests.support.gateway.find_frames import frame
from tests.support.store.store_kit import append

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    clock = iter(range(1_000, 1 << 40, 1_000))
    async with await LocalStore.open(tmp_path, now_ms=lambda: next(clock), linger_s=3600) as store:
        yield store


async def read(store, *addresses, now_ms=0, queue=FIRST_QUEUE, **asked):
    request = ReadQueue(queue=queue, addresses=addresses, **asked)
    return await read_queue(store, request, now_ms=now_ms, topic_of=lambda address: f"topic of {address}")


def said(found):
    return [(offset, message.body) for offset, _, _, message in found.messages]


def mixed(count, *, start=0):
    """Returns messages of three addresses in turn."""
    return [Message(f"a/{n % 3}", b"%d" % n) for n in range(start, start + count)]


@pytest.mark.parametrize("frame_rows", [1, FEW_ROWS, 4 * FEW_ROWS], ids=str)
async def test_messages_of_the_addresses_come_oldest_first_in_pages(store, frame_rows):
    count = 96
    for start in range(0, count, frame_rows):
        await append(store, frame(*mixed(frame_rows, start=start), flags=0))
    found, after, pages = [], 0, 0
    while after is not None:
        page = await read(store, "a/0", "a/2", offset=after, limit=10)
        found, after, pages = found + said(page), page.after, pages + 1
        assert len(page.messages) <= 10
    assert found == [(n, b"%d" % n) for n in range(count) if n % 3 != 1]
    assert pages == 7
    assert said(await read(store, "a/1", offset=50, limit=1)) == [(52, b"52")]


async def test_ids_and_times_of_storing_are_filled_in(store):
    first = await append(store, frame(Message("a", b"0"), Message("a", b"1", id="mine"), flags=0))
    found = await read(store, "a")
    assert [one.message.id for one in found.messages] == [str(Position(first.frame, 0)), "mine"]
    assert {one.topic for one in found.messages} == {"topic of a"}
    assert len({one.stored_at_ms for one in found.messages}) == 1
    assert found.messages[0].stored_at_ms >= 1_000


async def test_only_what_was_stored_in_a_time(store):
    for n in range(6):
        await append(store, frame(Message("a", b"%d" % n), flags=0))
    stored = [one.stored_at_ms for one in (await read(store, "a")).messages]
    assert stored == sorted(set(stored))
    found = await read(store, "a", from_ms=stored[2], until_ms=stored[4])
    assert (said(found), found.after) == ([(2, b"2"), (3, b"3")], None)
    assert said(await read(store, "a", from_ms=stored[2], offset=4)) == [(4, b"4"), (5, b"5")]
    assert said(await read(store, "a", from_ms=stored[-1] + 1)) == []


async def test_expired_messages_conditions_and_collisions_are_left_out(store):
    messages = [Message("a", b"%d" % n, qos=n % 2, expires_at_ms=5 if n == 3 else None) for n in range(5)]
    await append(store, frame(*messages, flags=0))
    assert said(await read(store, "a", where="qos = 1")) == [(1, b"1"), (3, b"3")]
    assert said(await read(store, "a", where="qos = 1", now_ms=6)) == [(1, b"1")]
    hashes = (0, queue_search.hash64("x"), 0)
    await append(store, frame(Message("a", b"other"), flags=0, hashes=hashes))
    assert said(await read(store, "x")) == []


async def test_rows_that_point_into_other_queues_tell_nothing(store):
    await append(store, frame(Message("a", b"1"), flags=ROW_EXTRA))
    assert await read(store, "a") == await read(store, "a", queue=99)


@pytest.mark.parametrize("queue", [0, FIRST_QUEUE - 1, FIRST_QUEUE + 1])
async def test_queues_of_the_store_and_unknown_ones_are_empty(store, queue):
    await append(store, frame(Message("a", b"1"), flags=0))
    found = await read(store, "a", queue=queue)
    assert (list(found.messages), found.after) == ([], None)


async def test_an_offset_behind_the_end_finds_nothing(store):
    await append(store, frame(Message("a", b"1"), flags=0))
    for offset in (1, 2, (1 << 63) - 1):
        found = await read(store, "a", offset=offset)
        assert (list(found.messages), found.after) == ([], None)


async def test_a_search_looks_at_so_many_rows_and_says_where_to_go_on(store, monkeypatch):
    monkeypatch.setattr(queue_search, "LOOKED_MAX", 20)
    monkeypatch.setattr(queue_search, "FETCH_ROWS", 7)
    await append(store, frame(*mixed(30), Message("b", b"last"), flags=0))
    found = await read(store, "b")
    assert (list(found.messages), found.after) == ([], 20)
    found = await read(store, "b", offset=20)
    assert (said(found), found.after) == ([(30, b"last")], None)
    assert LOOKED_MAX > 20


async def test_an_answer_has_so_many_bytes_and_one_message_at_least(store, monkeypatch):
    monkeypatch.setattr(queue_search, "BODY_BYTES_MAX", 10)
    await append(store, frame(Message("a", b"x" * 20), Message("a", b"y" * 6), Message("a", b"z" * 5), flags=0))
    found = await read(store, "a")
    assert ([len(body) for _, body in said(found)], found.after) == ([20], 1)
    found = await read(store, "a", offset=1)
    assert (said(found), found.after) == ([(1, b"y" * 6)], 2)


class Damaged:
    """A store whose records from `first` on are lost, up to `next`, and whose earliest offset is `earliest`."""

    def __init__(self, store, *, first, next_, earliest=0):
        self._store, self._first, self._next, self._earliest = store, first, next_, earliest
        self.queues = self

    async def fetch(self, queue, offset, *, max_bytes, max_rows):
        if offset < self._earliest:
            raise OffsetOutOfRange(offset, self._earliest, 9)
        if self._first <= offset < (self._next or 9):
            raise CorruptFrame(77, "body checksum", self._next)
        rows = min(max_rows, self._first - offset) if offset < self._first else max_rows
        return await self._store.queues.fetch(queue, offset, max_bytes=max_bytes, max_rows=rows)


async def test_lost_messages_come_after_those_before_them_with_the_way_on(store):
    await append(store, frame(*(Message("a", b"%d" % n) for n in range(9)), flags=0))
    damaged = Damaged(store, first=3, next_=6)
    found = await read(damaged, "a")
    assert (len(found.messages), found.after) == (3, 3)
    with pytest.raises(Refusal, match=r"message at 16, 3 is lost.*after=6") as refused:
        await read(damaged, "a", offset=3)
    assert refused.value.cause is Cause.DAMAGED
    assert said(await read(damaged, "a", offset=6)) == [(6, b"6"), (7, b"7"), (8, b"8")]
    with pytest.raises(CorruptFrame):
        await read(Damaged(store, first=3, next_=None), "a", offset=3)


async def test_what_retention_has_taken_is_passed_over(store):
    await append(store, frame(*(Message("a", b"%d" % n) for n in range(9)), flags=0))
    found = await read(Damaged(store, first=9, next_=9, earliest=7), "a")
    assert (said(found), found.after) == ([(7, b"7"), (8, b"8")], None)
