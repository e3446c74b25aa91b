"""The engine's threads, and a disk that fails under them."""

import errno
from queue import SimpleQueue
from threading import Event

import lmdb
import pytest

from store.api.log import Appended
from store.base.errors import AppendOutcomeUnknown, DataDirLocked, SequenceOutOfOrder, StoreFailed, StoreFull
from store.engine import dispatcher as dispatcher_module
from store.engine import engine as engine_module
from store.engine.engine import Engine
from store.format.records import KvPut
from tests.support.store.store_kit import FaultyFiles, frame, records_frame

WAIT_S = 60


class Harness:
    """An engine whose reports are put in queues."""

    def __init__(self, data_dir, **options):
        self.groups = SimpleQueue()
        self.dispatched = SimpleQueue()
        self.failed = Event()
        self.now_ms = 1000
        self.engine = Engine(
            data_dir,
            now_ms=lambda: self.now_ms,
            on_committed=self.committed,
            on_dispatched=self.dispatched.put,
            on_failed=self.failed.set,
            **{"linger_s": 0.001, **options},
        )

    def committed(self, group):
        self.groups.put(group)
        if group.run is not None:
            self.engine.dispatch(group.run)

    def append(self, *frames):
        for unplaced in frames:
            self.engine.append(unplaced, lambda _: None)

    def outcomes(self, count):
        found = []
        while len(found) < count:
            found += [outcome for _, outcome in self.groups.get(timeout=WAIT_S).outcomes]
        assert len(found) == count
        return found

    def store(self, *frames):
        self.append(*frames)
        return self.outcomes(len(frames))


@pytest.fixture
def open_engine(tmp_path):
    opened = []

    def open_engine(**options):
        opened.append(Harness(tmp_path / "data", **options))
        return opened[-1]

    yield open_engine
    for harness in opened:
        harness.engine.close()


def test_groups_are_reported_in_order_and_then_dispatched(open_engine):
    harness = open_engine()
    outcomes = harness.store(*(frame((16, b"%d" % n)) for n in range(100)))
    assert outcomes == sorted(outcomes)
    assert all(isinstance(outcome, Appended) for outcome in outcomes)
    end = harness.engine.log.confirmed
    while harness.dispatched.get(timeout=WAIT_S) < end:
        pass
    assert harness.engine.views.dispatched == end


def test_time_never_goes_back(open_engine):
    harness = open_engine()
    harness.store(frame((16, b"a")))
    harness.now_ms = 500
    at = harness.store(frame((16, b"b")))[0]
    assert harness.engine.log.read(at.frame).header.stored_at_ms == 1000
    harness.engine.close()
    harness = open_engine()
    harness.now_ms = 700
    at = harness.store(frame((16, b"c")))[0]
    assert harness.engine.log.read(at.frame).header.stored_at_ms == 1000


def test_what_waits_is_one_write(open_engine):
    files = FaultyFiles()
    harness = open_engine(files=files)
    begun, resume = Event(), Event()
    files.before_sync = lambda: (begun.set(), resume.wait(WAIT_S))
    harness.append(frame((16, b"first")))
    assert begun.wait(WAIT_S)
    harness.append(*(frame((16, b"x")) for _ in range(50)))
    syncs = files.syncs
    resume.set()
    harness.outcomes(51)
    assert files.syncs == syncs + 2


def test_readers_see_nothing_that_is_not_synced(open_engine):
    files = FaultyFiles()
    harness = open_engine(files=files)
    seen = []
    files.before_sync = lambda: seen.append(harness.engine.log.read(0))
    harness.store(frame((16, b"x")))
    assert seen == [None]
    assert harness.engine.log.read(0) is not None


@pytest.mark.parametrize("room", [0, 1, 64, 100, 250])
def test_a_full_disk(open_engine, room, caplog):
    files = FaultyFiles()
    harness = open_engine(files=files)
    harness.store(frame((16, b"kept")))
    end = harness.engine.log.confirmed
    files.fill(room)
    refused = harness.store(frame((16, b"x" * 200)))[0]
    assert isinstance(refused, StoreFull)
    assert refused.retriable
    assert "No space" in str(harness.engine.full)
    assert harness.engine.error is None
    assert harness.engine.log.read(0).record(0) == b"kept"
    files.write_error = 0
    harness.engine.space.look()
    assert isinstance(harness.store(frame((16, b"later")))[0], Appended)
    harness.engine.close()
    harness = open_engine()
    assert harness.engine.error is None
    assert [f.record(0) for f in harness.engine.log.scan(0, harness.engine.log.end)] == [b"kept", b"later"]
    assert harness.engine.log.read(end).record(0) == b"later"


def test_a_sync_that_fails_is_not_tried_again(open_engine):
    files = FaultyFiles()
    harness = open_engine(files=files)
    files.sync_error = errno.EIO
    outcomes = harness.store(frame((16, b"a")), frame((16, b"b")))
    assert {type(outcome) for outcome in outcomes} <= {AppendOutcomeUnknown, StoreFailed}
    assert isinstance(outcomes[0], AppendOutcomeUnknown)
    syncs, files.sync_error = files.syncs, 0
    assert isinstance(harness.store(frame((16, b"c")))[0], StoreFailed)
    assert files.syncs == syncs
    assert harness.engine.log.confirmed == 0


def test_a_write_error_while_a_segment_is_finished(open_engine):
    files = FaultyFiles()
    harness = open_engine(files=files, segment_size_bytes=200)
    harness.store(frame((16, b"a" * 50)))
    files.sync_error = errno.EIO
    outcomes = harness.store(frame((16, b"b" * 50)), frame((16, b"c" * 50)))
    assert isinstance(outcomes[0], AppendOutcomeUnknown)


def test_views_that_cannot_be_brought_up_fail_the_store(open_engine, monkeypatch):
    harness = open_engine()

    def refuse(_):
        raise lmdb.PanicError("no")

    monkeypatch.setattr(harness.engine.views, "apply", refuse)
    assert isinstance(harness.store(frame((16, b"a")))[0], Appended)
    assert harness.failed.wait(WAIT_S)
    assert isinstance(harness.store(frame((16, b"b")))[0], StoreFailed)
    harness.engine.close()
    monkeypatch.undo()
    harness = open_engine()
    assert harness.engine.views.dispatched == harness.engine.log.end > 0


def test_commits_wait_for_views_far_behind(open_engine, monkeypatch):
    monkeypatch.setattr(dispatcher_module, "LAG_BYTES_MAX", 100)
    harness = open_engine(linger_s=WAIT_S)
    apply, held, resume = harness.engine.views.apply, Event(), Event()

    def slow(runs):
        held.set()
        resume.wait(WAIT_S)
        apply(runs)

    monkeypatch.setattr(harness.engine.views, "apply", slow)
    monkeypatch.setattr(dispatcher_module, "EAGER_BYTES", 10)
    harness.store(frame((16, b"x" * 200)))
    harness.append(frame((16, b"y")))
    assert held.wait(WAIT_S)
    assert harness.groups.empty()
    resume.set()
    harness.outcomes(1)


def test_producers_are_idempotent_over_a_restart(open_engine):
    harness = open_engine()
    sent = [frame((16, b"%d" % n), producer_id=9, sequence=n) for n in range(10, 15)]
    first = harness.store(*sent)
    assert harness.store(sent[1], sent[4]) == [
        Appended(first[1].frame, duplicate=True),
        Appended(first[4].frame, duplicate=True),
    ]
    harness.engine.close()
    harness = open_engine()
    assert harness.store(sent[1], sent[4]) == [
        Appended(first[1].frame, duplicate=True),
        Appended(first[4].frame, duplicate=True),
    ]
    gap, new, again = harness.store(
        frame((16, b"x"), producer_id=9, sequence=16), *[frame((16, b"y"), producer_id=9, sequence=15)] * 2
    )
    assert isinstance(gap, SequenceOutOfOrder)
    assert not new.duplicate
    assert again == Appended(new.frame, duplicate=True)


def test_one_engine_a_directory(open_engine):
    harness = open_engine()
    with pytest.raises(DataDirLocked):
        open_engine()
    harness.engine.close()
    harness.engine.close()
    open_engine()


def test_a_failed_start_gives_everything_back(open_engine, monkeypatch):
    harness = open_engine()
    harness.store(frame((16, b"a")))
    harness.engine.close()

    def refuse(*_):
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(engine_module.ProducerTable, "__init__", refuse)
        with pytest.raises(OSError, match="no"):
            open_engine()
    assert open_engine().engine.log.end > 0


def test_a_log_that_has_lost_its_end_goes_on_behind_what_the_views_hold(open_engine, tmp_path):
    """No log offset is used twice, and what the views know of keys is not lost with it."""
    harness = open_engine()
    at = harness.store(records_frame(KvPut("a", b"1")), records_frame(KvPut("b", b"2")))
    harness.engine.close()
    with next((tmp_path / "data" / "log").iterdir()).open("r+b") as file:
        file.truncate(at[1].frame)
    harness = open_engine()
    engine = harness.engine
    with engine.views.reading() as txn:
        assert [at for at, _ in engine.views.kv.slots(txn, b"", b"\xff")] == [b"\0a", b"\0b"]
    (lost,) = engine.log.damages.open()
    assert (lost.start, lost.end) == (at[1].frame, engine.log.first + 2 * at[1].frame)
    (later,) = harness.store(records_frame(KvPut("c", b"3")))
    assert later.frame == lost.end
