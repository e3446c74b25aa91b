"""Runs: queue offsets and what views are made from."""

import random

import numpy as np

from store.format.chunks import QueueEnd
from store.format.frame import ROW_EXTRA, Position
from store.format.placed import Placed
from store.format.records import KvPut, QueueDeleted
from store.log import run as run_module
from store.log.run import RunBuilder, joined
from tests.support.store.store_kit import fanout, frame, records_frame


def place(*frames, start=0):
    placed = []
    for i, unplaced in enumerate(frames):
        header = unplaced.header(log_offset=start, epoch=1, stored_at_ms=100 + i)
        placed.append(Placed(start, 100 + i, header, unplaced))
        start += unplaced.size_bytes
    return placed


def offsets(run):
    return [(queue, chunk.first, chunk.row_count, chunk.frame) for queue, chunk in run.chunks.each()]


def test_offsets_count_up_per_queue_and_go_on_in_the_next_run():
    builder = RunBuilder(lambda queue: QueueEnd(10) if queue == 17 else QueueEnd())
    first = place(frame((16, b"a"), (17, b"b"), (16, b"c")), frame((17, b"d")))
    run = builder.build(first)
    second = first[1].start
    assert offsets(run) == [(16, 0, 2, 0), (17, 10, 1, 0), (17, 11, 1, second)]
    following = builder.build(place(frame((16, b"e")), start=run.end))
    assert offsets(following) == [(16, 2, 1, run.end)]
    assert following.chunks.listed[0][1].next == 3


def test_few_rows_and_many_are_counted_alike(monkeypatch):
    chance = random.Random(3)
    frames = [frame(*((16 + chance.randrange(4), b"x") for _ in range(chance.randrange(6)))) for _ in range(20)]
    many = RunBuilder(lambda _: QueueEnd()).build(place(*frames))
    monkeypatch.setattr(run_module, "_SMALL_ROWS", 10_000)
    assert offsets(RunBuilder(lambda _: QueueEnd()).build(place(*frames))) == offsets(many)


def test_frames_without_rows():
    run = RunBuilder(lambda _: QueueEnd()).build(place(frame(), frame((16, b"x")), frame()))
    assert offsets(run) == [(16, 0, 1, 64)]
    assert run.position(0) == Position(64, 0)


def test_a_deleted_queue_begins_again_behind_the_frame():
    builder = RunBuilder(lambda _: QueueEnd())
    run = builder.build(
        place(
            frame((20, b"a"), (20, b"b")),
            records_frame(KvPut("k", b"v"), QueueDeleted(20)),
            frame((20, b"c")),
        )
    )
    assert [(queue, first) for queue, first, _, _ in offsets(run) if queue == 20] == [(20, 0), (20, 0)]
    assert [type(record) for _, record in run.records] == [KvPut, QueueDeleted]
    assert [at.row for at, _ in run.records] == [0, 1]


def test_a_record_nobody_understands_has_no_effect(caplog):
    run = RunBuilder(lambda _: QueueEnd()).build(place(frame((1, b"\xc1"), (1, b"\x91\x63"), (4, b"\x92\x06\xff"))))
    assert run.records == []
    assert "is invalid and has no effect" in caplog.text


def test_positions_and_the_last_record_of_an_address():
    run = RunBuilder(lambda _: QueueEnd()).build(
        place(
            frame((16, b"a", 7), (16, b"b", 8)),
            frame((16, b"c", 7), (17, b"c", 7, ROW_EXTRA), (1, b"\xc0", 7)),
            fanout(b"d", 16, 18),
        )
    )
    at = run.placed[1].start
    assert [run.position(i) for i in range(5)] == [(0, 0), (0, 1), (at, 0), (at, 1), (at, 2)]
    assert run.last(7) == Position(at, 0)
    assert run.last(8) == Position(0, 1)
    assert run.last(9) is None
    assert np.array_equal(run.counted(), [0, 1, 2])


def said(run):
    return [*map(bytes, run.rows)], [placed.start for placed in run.placed], [*run.records]


def test_runs_that_follow_each_other_are_joined_and_hold_the_same():
    builder, at, runs = RunBuilder(lambda _: QueueEnd()), 0, []
    for number, made in enumerate(
        [
            [frame((16, b"a"))],
            [frame((17, b"b"), (16, b"c")), frame((16, b"d"))],
            [records_frame(KvPut("k", b"v"))],
            [frame((18, b"e"))],
            [records_frame(QueueDeleted(18)), frame((18, b"f"))],
            [frame((18, b"g"))],
            [frame((18, b"h"), (19, b"i"))],
            [frame(*((20 + n, b"many") for n in range(100)))],
            [frame(*((20 + n, b"many") for n in range(90)))],
            [frame((16, b"j"))],
        ]
    ):
        placed = place(*made, start=at)
        runs.append(builder.build(placed))
        at = runs[-1].end
        assert (runs[-1].chunks.columns is not None) is (number in {7, 8})
    whole = joined(runs)
    assert [(run.start, run.end) for run in whole] == [
        (runs[0].start, runs[6].end),
        (runs[7].start, runs[8].end),
        (runs[9].start, runs[9].end),
    ]
    for part in range(3):
        assert [one for run in whole for one in said(run)[part]] == [one for run in runs for one in said(run)[part]]
    assert [one for run in whole for one in offsets(run)] == [one for run in runs for one in offsets(run)]
    assert [whole[0].position(row) for row in range(4)] == [
        Position(runs[0].start, 0),
        Position(runs[1].start, 0),
        Position(runs[1].start, 1),
        Position(runs[1].placed[1].start, 0),
    ]


def test_rows_are_counted_alike_whatever_numbers_their_queues_have(monkeypatch):
    chance = random.Random(5)
    made = [frame(*((16 + chance.randrange(400), b"x") for _ in range(50))) for _ in range(3)]
    counted = [RunBuilder(lambda _: QueueEnd()).build(place(one)) for one in made]
    monkeypatch.setattr(run_module, "_COUNTED_MAX", 0)
    assert [offsets(RunBuilder(lambda _: QueueEnd()).build(place(one))) for one in made] == list(map(offsets, counted))
