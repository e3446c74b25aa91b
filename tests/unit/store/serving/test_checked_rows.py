"""Rows that clients send are checked alike on every way: for queues that are no more, and timers that never fire."""

from types import SimpleNamespace

import pytest

from store.base.errors import FrameTooLarge, QueueDropped
from store.format.compression import compress
from store.format.frame import FEW_ROWS, FRAME_ZSTD, ROW, UnplacedFrame
from store.format.records import TIMERS_QUEUE, TimerSet, encode
from store.rpc.budget import Budget
from store.rpc.frames import decode_acks, packed, packed_message
from store.serving.dropped import check_rows
from store.serving.intake import Intake

GONE, KEPT = 20, 21

few_or_many = pytest.mark.parametrize("more", [0, FEW_ROWS + 1])


def row(queue, size=1):
    return ROW.pack(queue, 0, size, 0, 0, 0, 0, 0)


def check(rows, more, *, payload=b"x", dropped=frozenset({GONE})):
    check_rows(rows + row(KEPT) * more, lambda: payload, dropped)


@few_or_many
def test_rows_of_a_dropped_queue_are_refused(more):
    with pytest.raises(QueueDropped, match=str(GONE)):
        check(row(KEPT) + row(GONE), more)
    check(row(KEPT) + row(GONE), more, dropped=frozenset())
    check(row(KEPT), more)


@few_or_many
def test_so_are_timers_for_it_and_those_that_fit_in_no_frame(more, monkeypatch):
    timers = {queue: encode(TimerSet(7, row(queue), b"x")) for queue in (GONE, KEPT)}
    with pytest.raises(QueueDropped):
        check(row(TIMERS_QUEUE, len(timers[GONE])), more, payload=timers[GONE])
    monkeypatch.setattr("store.serving.dropped.TIMER_BYTES_MAX", ROW.size + 1)
    for dropped in (frozenset(), {GONE}):
        check(row(TIMERS_QUEUE, len(timers[KEPT])), more, payload=timers[KEPT], dropped=dropped)
    large = encode(TimerSet(7, row(KEPT), b"xy"))
    with pytest.raises(FrameTooLarge):
        check(row(TIMERS_QUEUE, len(large)), more, payload=large)


@few_or_many
def test_a_payload_without_timers_is_not_asked_for(more):
    check_rows(row(KEPT) * (more + 1), lambda: pytest.fail("asked for"), frozenset({GONE}))


@pytest.mark.anyio
async def test_a_frame_that_does_not_decompress_is_refused_and_gives_its_share_of_the_memory_back():
    """It kept it for good: three large ones, and no client of the node could append until it was restarted."""
    budget = Budget(1 << 20)
    store = SimpleNamespace(timers=SimpleNamespace(held=None), log=SimpleNamespace(confirmed=0, append=pytest.fail))
    intake = Intake(store, budget, lambda: None)
    frame = UnplacedFrame.build(row(TIMERS_QUEUE, 10), compress(bytes(1_000))[:-1], flags=FRAME_ZSTD)
    await intake.received(packed_message(0, list(packed(frame))))
    assert budget.free == budget.size
    (ack,) = decode_acks(intake.take_message()).acks
    assert ack.error is not None
