"""The write path: what is answered when, in which order, and what becomes of it when the disk fails or is full."""

import errno
import os
from collections import deque
from queue import SimpleQueue
from threading import Event, Thread, get_ident
from types import SimpleNamespace

import pytest

from store.api.log import Appended
from store.base.errors import AppendOutcomeUnknown, StoreFailed, StoreFull
from store.engine import commit as commit_module
from store.engine import dispatcher
from store.engine.engine import Engine
from store.format.frame import FRAME_ASYNC, FRAME_GUARDED, UnplacedFrame
from tests.support.store.store_kit import FaultyFiles, frame

WAIT_S = 60
RESERVE = 1 << 20


def relaxed(queue, body, **options):
    """Returns a frame that may be answered before it is synced."""
    made = frame((queue, body))
    return UnplacedFrame.build(made.rows, made.payload, flags=FRAME_ASYNC, **options)


class HeldDisk(FaultyFiles):
    """A disk whose syncs can be held: `hold` before them, `release` one."""

    def __init__(self):
        super().__init__()
        self.syncing, self._permits, self._held = Event(), SimpleQueue(), False
        self.before_sync = self._wait

    def _wait(self):
        if self._held:
            self.syncing.set()
            self._permits.get(timeout=WAIT_S)

    def hold(self):
        self._held = True

    def release(self):
        self._held = False
        self.syncing.clear()
        self._permits.put(None)


class EngineRig:
    """An engine that remembers what it reported."""

    def __init__(self, data_dir, **options):
        self.reported = SimpleQueue()
        self.answers = deque()
        self.runs = []
        self.failed = Event()
        self.files = options.setdefault("files", HeldDisk())
        options = {"linger_s": 0.001, "flush_interval_ms": 5, "disk_reserve_bytes": 0, **options}
        self.engine = Engine(
            data_dir,
            now_ms=lambda: 1000,
            on_committed=self._committed,
            on_dispatched=lambda _: None,
            on_failed=self.failed.set,
            **options,
        )
        self.log = self.engine.log

    def _committed(self, group):
        if group.run is not None:
            self.engine.dispatch(group.run)
        self.reported.put(group)

    def append(self, *frames):
        for unplaced in frames:
            self.engine.append(unplaced, unplaced)  # stands for its callback

    def next(self):
        """Returns the next report: its answers as (request, outcome), and the frames that can be read from now on."""
        group = self.reported.get(timeout=WAIT_S)
        return list(group.outcomes), [placed.frame for placed in group.run.placed] if group.run else []

    def answer(self):
        """Returns the next answer; raises queue.Empty when none comes for long."""
        while not self.answers:
            outcomes, seen = self.next()
            self.answers += outcomes
            self.runs += seen
        return self.answers.popleft()

    def store(self, *frames):
        self.append(*frames)
        found = [self.answer() for _ in frames]
        assert [asked for asked, _ in found] == list(frames)
        return [outcome for _, outcome in found]


@pytest.fixture
def open_rig(tmp_path):
    opened = []

    def open_rig(**options):
        opened.append(EngineRig(tmp_path / "data", **options))
        return opened[-1]

    yield open_rig
    for rig in opened:
        rig.files.release()
        rig.engine.close()


def bodies(log):
    return [found.record(0) for found in log.scan(log.first, log.confirmed)]


# ---- flush = async


def test_an_async_frame_is_answered_before_it_is_synced_and_read_after(open_rig):
    rig = open_rig()
    rig.files.hold()
    unplaced = relaxed(16, b"a")
    rig.append(unplaced)
    assert rig.next() == ([(unplaced, Appended(0))], [])
    assert rig.files.syncing.wait(WAIT_S)
    assert rig.log.written == unplaced.size_bytes
    assert rig.log.flushed == rig.log.confirmed == 0
    assert rig.log.read(0) is None
    rig.files.release()
    assert rig.next() == ([], [unplaced])
    assert rig.log.read(0).record(0) == b"a"


def test_async_frames_share_the_sync_of_an_interval(open_rig):
    rig = open_rig(flush_interval_ms=200)
    syncs = rig.files.syncs
    for n in range(20):
        rig.store(relaxed(16, b"%d" % n))
    assert rig.files.syncs == syncs
    _, seen = rig.next()
    while len(seen) < 20:
        seen += rig.next()[1]
    assert rig.files.syncs == syncs + 1


def test_a_sync_frame_takes_the_async_ones_before_it_along(open_rig):
    rig = open_rig(flush_interval_ms=WAIT_S * 1000)
    rig.store(relaxed(16, b"a"))
    rig.store(frame((16, b"b")))
    assert bodies(rig.log) == [b"a", b"b"]


def test_an_async_frame_is_not_answered_ahead_of_a_sync_one(open_rig):
    rig = open_rig()
    rig.files.hold()
    first, second = frame((16, b"first")), relaxed(16, b"second")
    rig.append(first)
    assert rig.files.syncing.wait(WAIT_S)
    rig.append(second)
    assert rig.reported.empty()
    rig.files.release()
    assert [rig.answer()[0] for _ in range(2)] == [first, second]


def test_closing_syncs_what_was_answered(open_rig):
    rig = open_rig(flush_interval_ms=WAIT_S * 1000)
    rig.store(relaxed(16, b"a"))
    syncs = rig.files.syncs
    rig.engine.end_appends()
    assert rig.files.syncs > syncs
    assert bodies(rig.log) == [b"a"]


def test_a_failed_background_sync_fails_the_store(open_rig, caplog):
    rig = open_rig()
    rig.files.sync_error = errno.EIO
    assert rig.store(relaxed(16, b"a")) == [Appended(0)]
    assert rig.failed.wait(WAIT_S)
    rig.files.sync_error = 0
    syncs = rig.files.syncs
    assert isinstance(rig.store(relaxed(16, b"b"))[0], StoreFailed)
    assert rig.log.confirmed == 0
    assert rig.files.syncs == syncs


# ---- several groups in flight


def test_the_next_group_is_written_while_one_is_synced(open_rig):
    rig = open_rig()
    rig.append(relaxed(16, b"0"))  # waits for its interval: the sync thread is not idle
    rig.files.hold()
    rig.append(frame((16, b"1")))
    assert rig.files.syncing.wait(WAIT_S)
    second = frame((16, b"2"))
    rig.append(second)
    rig.append(relaxed(16, b"3"))
    while rig.log.written < 2 * second.size_bytes:
        pass
    rig.files.release()
    rig.engine.end_appends()
    assert bodies(rig.log) == [b"0", b"1", b"2", b"3"]


def test_a_failed_sync_fails_all_groups_behind_it(open_rig):
    rig = open_rig(flush_interval_ms=1000)
    rig.store(relaxed(16, b"0"))
    rig.files.hold()
    rig.append(frame((16, b"1")))
    assert rig.files.syncing.wait(WAIT_S)
    rig.files.sync_error = errno.EIO
    rig.append(frame((16, b"2")), frame((16, b"3")))
    rig.files.release()
    outcomes = [rig.answer()[1] for _ in range(3)]
    assert isinstance(outcomes[0], AppendOutcomeUnknown)
    assert {type(outcome) for outcome in outcomes} <= {AppendOutcomeUnknown, StoreFailed}
    rig.files.sync_error = 0
    assert isinstance(rig.store(frame((16, b"4")))[0], StoreFailed)
    assert rig.log.confirmed == 0


def test_a_duplicate_is_not_answered_before_its_original_is_on_disk(open_rig):
    rig = open_rig()
    rig.store(frame((16, b"a"), producer_id=1, sequence=1))
    rig.files.hold()
    original = frame((16, b"b"), producer_id=1, sequence=2)
    rig.append(original)
    assert rig.files.syncing.wait(WAIT_S)
    rig.append(original)
    assert rig.reported.empty()
    rig.files.release()
    first, again = rig.answer()[1], rig.answer()[1]
    assert again == Appended(first.frame, duplicate=True)


def test_unsynced_bytes_are_bounded(open_rig, monkeypatch):
    monkeypatch.setattr(commit_module, "UNSYNCED_BYTES_MAX", 1000)
    rig = open_rig(flush_interval_ms=WAIT_S * 1000)
    for _ in range(20):
        rig.store(relaxed(16, b"x" * 300))
        assert rig.log.written - rig.log.flushed <= 1000 + 500


def test_a_segment_is_whole_on_disk_before_the_next_begins(open_rig):
    rig = open_rig(segment_size_bytes=500, flush_interval_ms=WAIT_S * 1000)
    for n in range(10):
        rig.store(relaxed(16, b"%d" % n * 200))
        assert rig.log.flushed >= rig.log._segments[-1].start
    rig.engine.end_appends()
    assert bodies(rig.log) == [b"%d" % n * 200 for n in range(10)]


# ---- a full disk


@pytest.mark.parametrize("room", [0, 1, 63, 64, 65, 300, 500])
def test_nothing_of_a_group_that_met_a_full_disk_is_stored(open_rig, room):
    """Cut anywhere, the log ends where it did, and producers may send the same sequence again."""
    rig = open_rig(flush_interval_ms=60_000)
    kept = frame((16, b"kept"), producer_id=7, sequence=1)
    rig.store(kept)
    rig.files.fill(room)
    rig.files.write_bytes_max = 50
    lost = frame((16, b"x" * 500), producer_id=7, sequence=2)
    assert isinstance(rig.store(lost)[0], StoreFull)
    assert rig.log.end == rig.log.confirmed == kept.size_bytes
    assert bodies(rig.log) == [b"kept"]
    assert isinstance(rig.store(lost)[0], StoreFull)  # refused without a write
    rig.files.write_error = 0
    rig.engine.space.look()
    again, duplicate = rig.store(lost, lost)
    assert again == Appended(kept.size_bytes)
    assert duplicate == Appended(kept.size_bytes, duplicate=True)
    rig.engine.close()
    assert [found.record(0) for found in open_rig().log.scan(0, 1 << 40)] == [b"kept", b"x" * 500]


def test_only_what_was_not_stored_is_refused(open_rig):
    rig = open_rig()
    stored = frame((16, b"kept"), producer_id=7, sequence=1)
    rig.store(stored)
    rig.files.fill(0)
    rig.files.hold()
    assert rig.store(stored) == [Appended(0, duplicate=True)]
    rig.files.release()
    assert isinstance(rig.store(frame((16, b"new")))[0], StoreFull)
    assert rig.store(stored) == [Appended(0, duplicate=True)]


def test_the_refusal_waits_until_the_cut_is_on_disk(open_rig):
    """Else a crash could bring back what was called not stored."""
    rig = open_rig()
    rig.files.fill(10)
    rig.files.hold()
    rig.append(frame((16, b"x" * 500)))
    assert rig.files.syncing.wait(WAIT_S)
    assert rig.reported.empty()
    rig.files.sync_error = errno.EIO
    rig.files.release()
    assert isinstance(rig.answer()[1], AppendOutcomeUnknown)
    assert rig.failed.is_set()


def test_a_cut_that_fails_fails_the_store(open_rig):
    rig = open_rig()
    rig.files.fill(10)
    rig.files.truncate_error = errno.EIO
    assert isinstance(rig.store(frame((16, b"x" * 500)))[0], AppendOutcomeUnknown)
    assert rig.failed.is_set()


def test_another_write_error_fails_the_store(open_rig):
    rig = open_rig()
    rig.files.write_error, rig.files.room = errno.EIO, 10
    assert isinstance(rig.store(frame((16, b"x" * 500)))[0], AppendOutcomeUnknown)
    rig.files.write_error = 0
    assert isinstance(rig.store(frame((16, b"later")))[0], StoreFailed)


@pytest.mark.parametrize(
    ("operation", "reason"),
    [("open", errno.ENOSPC), ("open", errno.EMFILE), ("open", errno.ENFILE), ("sync_directory", errno.EMFILE)],
)
def test_no_room_for_another_segment(open_rig, monkeypatch, operation, reason):
    rig = open_rig(segment_size_bytes=300)
    rig.store(frame((16, b"a" * 200)))
    works = getattr(rig.files, operation)

    def refuse(path, **_):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(rig.files, operation, refuse)
    assert isinstance(rig.store(frame((16, b"b" * 200)))[0], StoreFull)
    monkeypatch.setattr(rig.files, operation, works)
    rig.engine.space.look()
    assert isinstance(rig.store(frame((16, b"c" * 200)))[0], Appended)
    assert bodies(rig.log) == [b"a" * 200, b"c" * 200]


# ---- the watermark


def test_writing_is_refused_before_the_reserve_is_touched_and_goes_on_by_itself(open_rig, caplog):
    rig = open_rig(disk_reserve_bytes=RESERVE)
    rig.store(frame((16, b"kept")))
    rig.files.free = RESERVE - 1
    rig.engine.space.look()
    writes = rig.files.writes
    refused = rig.store(frame((16, b"x")))[0]
    assert isinstance(refused, StoreFull)
    assert str(RESERVE) in str(refused)
    assert rig.files.writes == writes
    assert bodies(rig.log) == [b"kept"]
    rig.files.free = RESERVE + 10  # not enough: it would flutter
    rig.engine.space.look()
    assert rig.engine.full is not None
    rig.files.free = 2 * RESERVE
    rig.engine.space.look()
    assert rig.engine.full is None
    assert rig.store(frame((16, b"later"))) == [Appended(rig.log.confirmed - frame((16, b"later")).size_bytes)]


def test_a_fast_writer_is_stopped_between_looks(open_rig):
    """The free space is looked at by bytes written, not by frames."""
    rig = open_rig(disk_reserve_bytes=8 << 20)
    rig.engine.space._owed = lambda: 0  # however far the views are behind
    looks = []
    rig.files.free_bytes = lambda path: looks.append(path) or rig.files.free
    rig.files.free = 20 << 20
    rig.engine.space.look()
    looks.clear()
    written = 0
    while True:
        outcome = rig.store(frame((16, b"x" * 200_000)))[0]
        if isinstance(outcome, StoreFull):
            break
        written += 200_000
        rig.files.free -= 200_000
    assert 11 << 20 <= written <= 14 << 20
    assert len(looks) < 20


def test_the_stores_own_frames_may_use_the_reserve(open_rig):
    rig = open_rig(disk_reserve_bytes=RESERVE)
    rig.files.free = 10
    rig.engine.space.look()
    made = frame((16, b"own"))
    rig.engine.append_own(lambda: made, made)
    assert rig.answer() == (made, Appended(0))
    assert isinstance(rig.store(frame((16, b"x")))[0], StoreFull)


def test_a_file_system_that_does_not_answer_stops_nobody(open_rig, caplog):
    rig = open_rig(disk_reserve_bytes=RESERVE)

    def refuse(_):
        raise OSError(errno.EIO, "no answer")

    rig.files.free_bytes = refuse
    rig.engine.space.look()
    assert isinstance(rig.store(frame((16, b"x")))[0], Appended)
    assert "not known" in caplog.text


def test_an_own_frame_is_made_when_its_place_is_certain(open_rig):
    rig = open_rig()
    seen = []

    def make():
        seen.append(rig.log.end)
        return frame((16, b"own"))

    before = frame((16, b"before"))
    rig.append(before)
    rig.engine.append_own(make, make)
    rig.append(frame((16, b"after")))
    outcomes = [rig.answer()[1] for _ in range(3)]
    assert seen == [before.size_bytes] == [outcomes[1].frame]


def test_what_is_synced_while_a_later_write_fails_is_seen(open_rig):
    rig = open_rig()
    rig.files.hold()
    rig.append(relaxed(16, b"answered"))
    assert isinstance(rig.answer()[1], Appended)
    assert rig.files.syncing.wait(WAIT_S)
    rig.files.write_error = errno.EIO
    rig.append(frame((16, b"not written")))
    assert rig.failed.wait(WAIT_S)
    rig.files.release()
    assert isinstance(rig.answer()[1], AppendOutcomeUnknown)
    assert bodies(rig.log) == [b"answered"]


# ---- commits on the caller's thread


def leave(rig, *frames):
    """Appends without waking the commit thread."""
    for unplaced in frames:
        rig.engine.append(unplaced, unplaced, wakes=False)


def test_what_was_appended_is_on_disk_and_reported_when_the_callers_commit_returns(open_rig):
    rig = open_rig()
    files, order = rig.files, []
    files.before_sync = lambda: order.append((get_ident(), rig.reported.qsize(), rig.log.written))
    first, second = frame((16, b"1")), frame((17, b"2"), (16, b"3"))
    leave(rig, first, second)
    assert rig.reported.empty()
    assert rig.engine.commit_here()
    assert order == [(get_ident(), 0, first.size_bytes + second.size_bytes)]
    assert rig.log.flushed == rig.log.confirmed == rig.log.written
    assert rig.reported.qsize() == 1
    outcomes, seen = rig.next()
    assert outcomes == [(first, Appended(0)), (second, Appended(first.size_bytes))]
    assert seen == [first, second]


def test_the_caller_commits_nothing_when_nothing_was_appended(open_rig):
    rig = open_rig()
    syncs = rig.files.syncs
    assert not rig.engine.commit_here()
    assert rig.files.syncs == syncs


def test_the_caller_does_not_wait_for_a_sync_under_way(open_rig):
    rig = open_rig()
    rig.files.hold()
    first, second = frame((16, b"1")), frame((16, b"2"))
    rig.append(first)
    rig.files.syncing.wait(WAIT_S)
    leave(rig, second)
    assert not rig.engine.commit_here()
    rig.files.release()
    assert [rig.answer(), rig.answer()] == [(first, Appended(0)), (second, Appended(first.size_bytes))]


@pytest.mark.parametrize(
    "unplaced",
    [
        relaxed(16, b"answered before it is synced"),
        UnplacedFrame.build(frame((16, b"g")).rows, b"g", flags=FRAME_GUARDED),
    ],
    ids=["async", "guarded"],
)
def test_what_may_need_more_than_a_sync_is_left_to_the_commit_thread(open_rig, unplaced):
    rig = open_rig()
    written_by = []
    rig.files.before_sync = lambda: written_by.append(get_ident())
    plain = frame((16, b"plain"))
    leave(rig, plain, unplaced)
    assert not rig.engine.commit_here()
    assert [rig.answer()[0], rig.answer()[0]] == [plain, unplaced]
    rig.engine.end_appends()
    assert get_ident() not in written_by


def test_a_segments_end_is_left_to_the_commit_thread(open_rig):
    rig = open_rig(segment_size_bytes=1000)
    first, second = frame((16, b"1" * 700)), frame((16, b"2" * 700))
    leave(rig, first)
    assert rig.engine.commit_here()
    leave(rig, second)
    assert not rig.engine.commit_here()
    assert [rig.answer(), rig.answer()] == [(first, Appended(0)), (second, Appended(first.size_bytes))]
    assert len(rig.log.segments) == 2


def test_the_caller_leaves_writing_to_the_thread_while_the_views_are_far_behind(open_rig, monkeypatch):
    monkeypatch.setattr(dispatcher, "EAGER_BYTES", -1)
    rig = open_rig()
    unplaced = frame((16, b"1"))
    leave(rig, unplaced)
    assert not rig.engine.commit_here()
    assert rig.answer() == (unplaced, Appended(0))


def test_a_sync_that_fails_on_the_callers_thread_fails_the_store(open_rig):
    rig = open_rig()
    rig.files.sync_error = errno.EIO
    unplaced, later = frame((16, b"1")), frame((16, b"2"))
    leave(rig, unplaced)
    assert rig.engine.commit_here()
    assert type(rig.answer()[1]) is AppendOutcomeUnknown
    assert rig.failed.is_set()
    leave(rig, later)
    assert rig.engine.commit_here()
    assert type(rig.answer()[1]) is StoreFailed


def test_a_full_disk_on_the_callers_thread_refuses_what_was_appended(open_rig):
    rig = open_rig()
    rig.files.write_error, rig.files.room = errno.ENOSPC, 100
    unplaced = frame((16, b"1" * 500))
    leave(rig, unplaced)
    assert rig.engine.commit_here()
    assert type(rig.answer()[1]) is StoreFull
    rig.files.write_error = 0
    rig.engine.space.look()
    assert [type(one) for one in rig.store(frame((16, b"2")))] == [Appended]
    assert bodies(rig.log) == [b"2"]


def test_each_sync_is_told_to_the_rule_for_the_loop(open_rig):
    rig = open_rig()
    told = []
    rig.engine._committer._loop_commits = SimpleNamespace(
        synced=lambda took_s, _: told.append(took_s), wrote=lambda *_: None
    )
    rig.store(frame((16, b"by the commit thread")))
    leave(rig, frame((16, b"by the caller")))
    assert rig.engine.commit_here()
    assert len(told) == 2
    assert all(0 < took_s < WAIT_S for took_s in told)


def test_appends_of_two_threads_are_stored_once_each_and_in_the_order_of_each(open_rig):
    rig = open_rig()
    count = 300
    mine = [frame((16, b"m%d" % n)) for n in range(count)]
    theirs = [frame((17, b"t%d" % n)) for n in range(count)]
    other = Thread(target=lambda: rig.append(*theirs))
    other.start()
    for unplaced in mine:
        leave(rig, unplaced)
        rig.engine.commit_here()
    other.join()
    places = {}
    for _ in range(2 * count):
        unplaced, outcome = rig.answer()
        places[id(unplaced)] = outcome.frame
    for frames in (mine, theirs):
        found = [places[id(one)] for one in frames]
        assert found == sorted(set(found))
    assert sorted(bodies(rig.log)) == sorted(one.payload for one in (*mine, *theirs))
