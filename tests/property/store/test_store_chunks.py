"""Columnar chunks equal the chunks read singly: in runs, in the views and in memory."""

import random
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.chunks import QueueEnd
from store.format.placed import Placed
from store.format.policy import LeasePolicy
from store.format.queue_config import QueueConfig
from store.format.records import (
    AddressesSeen,
    DeadLetter,
    DeadLettered,
    GroupDeleted,
    GroupOffsets,
    KvDelete,
    KvLimits,
    KvPut,
    KvTransaction,
    LeasePolicySet,
    LogTrimmed,
    QueueDeleted,
    Settled,
    TimerCancelled,
    TimerSet,
)
from store.log import run as run_module
from store.log.run import RunBuilder, joined
from store.recent.recent import Recent
from store.views import Views
from tests.support.process.examples import examples
from tests.support.store.store_kit import frame, records_frame

QUEUES = [16, 17, 18, 40, 1 << 20, (1 << 32) - 1]
FRAMES = st.lists(
    st.one_of(
        st.lists(st.sampled_from(QUEUES), max_size=30).map(lambda queues: frame(*((queue, b"x") for queue in queues))),
        st.sampled_from(QUEUES).map(lambda queue: records_frame(QueueDeleted(queue))),
        st.just(records_frame(GroupOffsets("g", {16: 3}))),
        st.just(frame((16, b"x"), (1, b"junk"), (18, b"y"))),
    ),
    min_size=1,
    max_size=12,
)
_queues, _groups, _keys = st.sampled_from(QUEUES), st.sampled_from(["", "g", "h"]), st.sampled_from(["a", "b"])
_ranges = st.tuples(st.integers(0, 5), st.integers(1, 4)).map(lambda found: ((found[0], sum(found)),))
_places = st.integers(0, 4_000)
RECORDS = st.one_of(
    st.builds(Settled, _queues, _ranges, _groups, st.one_of(st.just((1 << 63) - 1), _places)),
    st.builds(DeadLettered, _queues, _groups, st.just("expired"), st.just(0), st.just((DeadLetter(2, 0, 0, 1),))),
    st.builds(LeasePolicySet, _queues, _groups, st.builds(LeasePolicy, max_deliveries=st.integers(0, 2))),
    st.builds(QueueDeleted, _queues),
    st.builds(GroupDeleted, _groups),
    st.builds(GroupOffsets, _groups, st.dictionaries(_queues, st.integers(0, 9), max_size=2)),
    st.builds(QueueConfig, _queues, compact=st.booleans(), retention_ms=st.sampled_from([None, 5])),
    st.builds(KvPut, _keys, st.binary(max_size=3), st.sampled_from([None, 0, -1])),
    st.builds(KvDelete, _keys),
    st.builds(KvLimits, st.just(""), st.integers(0, 2)),
    st.builds(KvTransaction, st.just(""), st.just((("a", 0),)), st.just((("b", b"v", 0), ("a", None, 0)))),
    st.builds(TimerSet, st.integers(1, 9), st.just(frame((16, b"t")).rows), st.just(b"t")),
    st.builds(TimerCancelled, st.integers(1, 9), _places, st.integers(0, 2)),
    st.builds(AddressesSeen, st.sampled_from([("a/b",), ("a/b", "c")])),
    st.builds(LogTrimmed, _places, st.just(0)),
)
_messages = st.lists(st.tuples(_queues, st.just(b"x"), st.integers(1, 3)), min_size=1, max_size=12)
MIXED = st.lists(
    st.one_of(
        _messages.map(lambda rows: frame(*rows)),
        st.lists(RECORDS, min_size=1, max_size=3).map(lambda records: records_frame(*records)),
    ),
    min_size=1,
    max_size=14,
)


def place(frames):
    placed, at = [], 0
    for n, one in enumerate(frames):
        placed.append(Placed(at, n, one.header(log_offset=at, epoch=1, stored_at_ms=n), one))
        at += one.size_bytes
    return placed


def built(placed, cuts, columns_min, monkeypatch):
    """Runs of frames, cut at some places."""
    monkeypatch.setattr(run_module, "_COLUMNS_MIN", columns_min)
    builder = RunBuilder(lambda queue: QueueEnd(7, 100) if queue == 40 else QueueEnd())
    edges = sorted({0, len(placed), *cuts})
    return [builder.build(placed[a:b]) for a, b in pairwise(edges)], builder


@settings(max_examples=examples(150), deadline=None)
@given(FRAMES, st.lists(st.integers(0, 12), max_size=3), st.randoms())
def test_columns_are_the_same_chunks(frames, cuts, chance):
    placed = place(frames)
    cuts = [min(cut, len(placed)) for cut in cuts]
    with pytest.MonkeyPatch.context() as patch:
        listed, one = built(placed, cuts, 1 << 30, patch)
        patch.setattr(run_module, "_SMALL_ROWS", 0)
        columns, other = built(placed, cuts, 1, patch)
    assert [list(run.chunks.each()) for run in listed] == [list(run.chunks.each()) for run in columns]
    assert [run.records for run in listed] == [run.records for run in columns]
    assert [run.chunks.queues() for run in listed] == [run.chunks.queues() for run in columns]
    assert [dict(run.chunks.nexts()) for run in listed] == [dict(run.chunks.nexts()) for run in columns]
    assert one.ends == other.ends
    followed = []
    for runs in (listed, columns):
        recent, seen = Recent(0), []
        seed = chance.random()
        again = random.Random(seed)
        for run in runs:
            recent.add(run, None)
            if again.random() < 0.5:
                seen.append([(queue, recent.chunks(queue)) for queue in QUEUES])
            if again.random() < 0.3:
                recent.trim(run.placed[again.randrange(len(run.placed))].end)
            seen.append([recent.next_offset(queue) for queue in QUEUES])
        seen.append([(queue, recent.chunks(queue)) for queue in QUEUES])
        followed.append(seen)
        chance.seed(seed)
    with TemporaryDirectory() as name:
        entries = []
        for number, runs in enumerate((listed, columns)):
            views = Views(Path(name) / str(number))
            for run in runs:
                views.apply([run])
            entries.append(list(views.entries()))
            views.close()
        together = Views(Path(name) / "together")
        together.apply(columns)
        entries.append(list(together.entries()))
        together.close()
    assert entries[0] == entries[1] == entries[2]


@settings(max_examples=examples(100), deadline=None)
@given(MIXED, st.lists(st.integers(0, 14), max_size=8), st.sampled_from([1, 1 << 30]))
def test_views_are_the_same_however_their_runs_are_joined(frames, cuts, columns_min):
    placed = place(frames)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "_SMALL_ROWS", 4)
        runs, _ = built(placed, [min(cut, len(placed)) for cut in cuts], columns_min, patch)
    with TemporaryDirectory() as name:
        entries = []
        for number, parts in enumerate(([[run] for run in runs], [runs], [joined(runs)])):
            views = Views(Path(name) / str(number))
            for part in parts:
                views.apply(part)
            entries.append(list(views.entries()))
            views.close()
    assert entries[0] == entries[1] == entries[2]


@pytest.mark.parametrize("columns_min", [1, 1 << 30])
def test_memory_follows_the_same_either_way(monkeypatch, columns_min):
    """Indexed late, trimmed early, deleted in between: a queue matches a model made of plain lists."""
    chance = random.Random(columns_min)
    monkeypatch.setattr(run_module, "_SMALL_ROWS", 0)
    monkeypatch.setattr(run_module, "_COLUMNS_MIN", columns_min)
    recent, builder = Recent(0), RunBuilder(lambda _queue: QueueEnd())
    plain = {queue: [] for queue in QUEUES}
    at, dispatched, runs = 0, 0, []
    for _ in range(400):
        frames = [frame(*((chance.choice(QUEUES), b"x") for _ in range(chance.randint(1, 9)))) for _ in range(3)]
        deleted = chance.choice(QUEUES) if chance.random() < 0.1 else None
        if deleted is not None:
            frames.insert(1, records_frame(QueueDeleted(deleted)))
        placed = []
        for one in frames:
            placed.append(Placed(at, at, one.header(log_offset=at, epoch=1, stored_at_ms=at), one))
            at += one.size_bytes
        run = builder.build(placed)
        for queue, chunk in run.chunks.each():
            if deleted is not None and chunk.frame > placed[1].start:
                plain[deleted], deleted = [], None
            plain.setdefault(queue, []).append(chunk)
        if deleted is not None:
            plain[deleted] = []
        recent.add(run, None)
        runs.append(run)
        if chance.random() < 0.3:
            while runs and chance.random() < 0.8:
                dispatched = runs.pop(0).end
            recent.trim(dispatched)
        if chance.random() < 0.5:
            queue = chance.choice(QUEUES)
            assert recent.chunks(queue) == tuple(c for c in plain[queue] if c.frame >= dispatched)
            if plain[queue]:
                assert recent.next_offset(queue) == plain[queue][-1].next


def test_a_trim_in_a_run_of_columns_takes_what_lies_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "_COLUMNS_MIN", 1)
    monkeypatch.setattr(run_module, "_SMALL_ROWS", 0)
    frames = [frame(*((queue, b"x") for queue in QUEUES)) for _ in range(5)]
    placed = place([*frames, records_frame(LogTrimmed(frames[0].size_bytes * 3, 0)), *frames])
    views = Views(tmp_path / "views")
    views.apply([RunBuilder(lambda _queue: QueueEnd()).build(placed)])
    with views.reading() as txn:
        for queue in QUEUES:
            assert [chunk.first for chunk in views.queues.chunks(txn, queue, 0)] == [3, 4, 5, 6, 7, 8, 9]
    views.close()
