"""The views in LMDB."""

from threading import Event, Thread
from time import monotonic

import lmdb
import pytest

from store.api.keys import Entry
from store.api.kv_rules import end_of_prefix, slot_range, split
from store.base.errors import NotRebuildable, StoreFull
from store.format.frame import ONCE_PRODUCER
from store.format.placed import Placed
from store.format.records import GroupDeleted, GroupOffsets, KvDelete, KvPut, QueueDeleted, Settled
from store.log import producers as table_module
from store.log.producers import ProducerTable
from store.log.run import FrameRun, RunBuilder
from store.views import Views
from store.views import producers as producers_module
from tests.support.store.store_kit import frame, records_frame


def until(true, seconds=10):
    """Waits until another thread makes a condition true, and returns whether it did."""
    end = monotonic() + seconds
    while not true() and monotonic() < end:
        Event().wait(0.001)
    return true()


class Feed:
    """Puts frames in a place and applies them."""

    def __init__(self, path, **options):
        self.views = Views(path, **options)
        self.builder = RunBuilder(self._end)
        self.end = self.views.dispatched

    def _end(self, queue):
        with self.views.reading() as txn:
            return self.views.queues.end(txn, queue)

    def run(self, *frames) -> FrameRun:
        placed = []
        for unplaced in frames:
            header = unplaced.header(log_offset=self.end, epoch=1, stored_at_ms=self.end)
            placed.append(Placed(self.end, self.end, header, unplaced))
            self.end += unplaced.size_bytes
        return self.builder.build(placed)

    def apply(self, *frames) -> list[int]:
        run = self.run(*frames)
        self.views.apply([run])
        return [placed.start for placed in run.placed]


@pytest.fixture
def feed(tmp_path):
    feed = Feed(tmp_path / "views")
    yield feed
    feed.views.close()


def test_the_dispatched_offset_is_part_of_the_transaction(tmp_path):
    feed = Feed(tmp_path / "views")
    assert feed.views.dispatched == 0
    feed.apply(frame((16, b"a")), frame((16, b"b")))
    feed.views.close()
    views = Views(tmp_path / "views")
    assert views.dispatched == feed.end
    assert views.stored_at_ms == feed.end // 2
    views.close()


def test_chunks_are_found_by_offset(feed):
    at = feed.apply(frame((16, b"a"), (17, b"b"), (16, b"c")), frame((16, b"d")), frame((17, b"e")), frame((16, b"f")))
    queues = feed.views.queues
    with feed.views.reading() as txn:
        chunks = [list(queues.chunks(txn, 16, offset)) for offset in range(5)]
        assert [chunk.frame for chunk in chunks[0]] == [at[0], at[1], at[3]]
        assert [(chunk.first, chunk.row_count, chunk.stored_at_ms) for chunk in chunks[0]] == [
            (0, 2, at[0]),
            (2, 1, at[1]),
            (3, 1, at[3]),
        ]
        assert chunks[1] == chunks[0]
        assert chunks[2] == chunks[0][1:]
        assert chunks[3] == chunks[0][2:]
        assert chunks[4] == []
        assert [queues.next_offset(txn, queue) for queue in (15, 16, 17, 18)] == [0, 4, 2, 0]
        assert [queues.first_offset(txn, queue) for queue in (15, 16, 18)] == [0, 0, 0]


def test_search_by_halving(feed):
    at = feed.apply(*(frame(*[(16, b"x")] * (1 + i % 3), (17, b"y")) for i in range(20)))
    queues = feed.views.queues
    with feed.views.reading() as txn:
        firsts = [chunk.first for chunk in queues.chunks(txn, 16, 0)]
        for i, start in enumerate(at):
            assert queues.search(txn, 16, lambda chunk, start=start: chunk.frame >= start) == firsts[i]
            assert queues.search(txn, 17, lambda chunk, start=start: chunk.frame > start) == i + 1
        assert queues.search(txn, 16, lambda _: False) == queues.next_offset(txn, 16)
        assert queues.search(txn, 99, lambda _: True) == 0


def test_a_deleted_queue_is_gone_and_may_begin_again(feed):
    feed.views.apply(
        [
            feed.run(frame((20, b"a"), (21, b"b")), records_frame(Settled(20, ((0, 1),)), Settled(21, ((0, 1),)))),
            feed.run(frame((20, b"b")), records_frame(QueueDeleted(20)), frame((20, b"c"))),
        ]
    )
    with feed.views.reading() as txn:
        assert [chunk.first for chunk in feed.views.queues.chunks(txn, 20, 0)] == [0]
        assert feed.views.queues.next_offset(txn, 21) == 1
        assert feed.views.settled.get(txn, 20) == []
        assert feed.views.settled.get(txn, 21) == [(0, 1)]


def test_the_newest_record_of_an_address(feed):
    first = feed.apply(frame((16, b"a", 7), (16, b"b", 8), (16, b"c", 7)))
    second = feed.apply(frame((16, b"d", 8)), frame((16, b"e", 9), (17, b"f", 8)))
    with feed.views.reading() as txn:
        assert feed.views.last.get(txn, 7) == (first[0], 2)
        assert feed.views.last.get(txn, 8) == (second[1], 1)
        assert feed.views.last.get(txn, 9) == (second[1], 0)
        assert feed.views.last.get(txn, 10) is None


def test_more_addresses_than_one_call_takes(feed):
    feed.apply(frame(*((16, b"", n) for n in range(1, 2000))))
    with feed.views.reading() as txn:
        assert [feed.views.last.get(txn, n) for n in range(1, 2000)] == [(0, n - 1) for n in range(1, 2000)]


def test_compare_and_set_is_decided_in_log_order(feed):
    at = feed.apply(records_frame(KvPut("a", b"1"), KvPut("b", b"1", 0), KvPut("b", b"2", 0), KvPut("a", b"2", 1)))[0]
    kv = feed.views.kv
    with feed.views.reading() as txn:
        assert kv.get(txn, "a") == Entry("a", b"2", at + 4, at + 1, 2)
        assert kv.get(txn, "b") == Entry("b", b"1", at + 2, at + 2, 1)
    feed.apply(records_frame(KvDelete("a", 1), KvDelete("b", at + 2), KvDelete("c"), KvPut("x" * 481, b"")))
    with feed.views.reading() as txn:
        assert kv.get(txn, "a").revision == at + 4
        assert kv.get(txn, "b") is None
        assert [where for where, _ in kv.slots(txn, b"", b"\xff")] == [b"\0a"]


def test_keys_by_range(feed):
    keys = ["", "a", "a/1", "a/2", "a/é", "b", "a" * 480]
    feed.apply(records_frame(*(KvPut(key, key.encode()) for key in keys)))
    with feed.views.reading() as txn:

        def found(first, end):
            return [split(at)[1] for at, _ in feed.views.kv.slots(txn, *slot_range("", first, end))]

        assert found("", None) == sorted(keys)
        assert found("a/", end_of_prefix("a/")) == ["a/1", "a/2", "a/é"]
        assert found("a/2", "a/é") == ["a/2"]
        assert found("c", None) == []


def test_groups(feed):
    feed.apply(
        records_frame(
            GroupOffsets("g", {16: 5, 17: 6}), GroupOffsets("g\0", {16: 1}), GroupOffsets("g", {16: 4, 18: -1})
        )
    )
    with feed.views.reading() as txn:
        assert feed.views.groups.get(txn, "g") == {16: 4, 17: 6, 18: -1}
    feed.apply(records_frame(GroupDeleted("g")))
    with feed.views.reading() as txn:
        assert feed.views.groups.get(txn, "g") == {}
        assert feed.views.groups.get(txn, "g\0") == {16: 1}


def test_settled_ranges_have_one_form(feed):
    for ranges in [((5, 6),), ((0, 2), (8, 9)), ((2, 5),), ((20, 30), (25, 40)), ((7, 8), (6, 7))]:
        feed.apply(records_frame(Settled(20, ranges), Settled(19, ((1, 2),)), Settled(21, ((3, 4),))))
    with feed.views.reading() as txn:
        assert feed.views.settled.get(txn, 20) == [(0, 9), (20, 40)]
        assert feed.views.settled.get(txn, 19) == [(1, 2)]


def test_producers_are_restored(feed, monkeypatch):
    monkeypatch.setattr(producers_module, "SEQUENCES_KEPT", 2)
    first = feed.apply(*(frame((16, b"x"), producer_id=1, sequence=n) for n in range(5, 8)))
    second = feed.apply(frame((16, b"x"), producer_id=2, sequence=1), frame((16, b"x"), producer_id=1, sequence=8))
    table = ProducerTable()
    with feed.views.reading() as txn:
        feed.views.producers.restore(txn, table)
    assert list(table) == [(2, 1), (1, 8)]
    assert table.find(1, 7) == first[2]
    assert table.find(1, 8) == second[1]


def test_producers_are_bounded(feed, monkeypatch):
    monkeypatch.setattr(producers_module, "PRODUCERS_MAX", 2)
    monkeypatch.setattr(table_module, "PRODUCERS_MAX", 2)
    feed.apply(*(frame((16, b"x"), producer_id=n, sequence=1) for n in (1, 2, 3)))
    feed.apply(frame((16, b"x"), producer_id=2, sequence=2))
    feed.apply(frame((16, b"x"), producer_id=1, sequence=9))
    table = ProducerTable()
    with feed.views.reading() as txn:
        feed.views.producers.restore(txn, table)
    assert dict(table) == {2: 2, 1: 9}


def test_views_that_have_lost_their_end_begin_anew(tmp_path):
    feed = Feed(tmp_path / "views")
    for n in range(3):
        feed.apply(frame(*((16 + i, b"x", i + 1) for i in range(n, 3_000))))
    feed.views.close()
    path = tmp_path / "views" / "data.mdb"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotRebuildable):
        Views(tmp_path / "views", rebuildable=False)
    views = Views(tmp_path / "views")
    assert views.dispatched == 0
    assert not [name for name, *_ in views.entries() if name != b"meta"]
    views.close()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 20])
def test_the_producers_kept_do_not_depend_on_how_runs_are_cut(tmp_path, monkeypatch, size):
    monkeypatch.setattr(producers_module, "PRODUCERS_MAX", 3)
    monkeypatch.setattr(producers_module, "SEQUENCES_KEPT", 2)
    monkeypatch.setattr(table_module, "PRODUCERS_MAX", 3)
    monkeypatch.setattr(table_module, "SEQUENCES_KEPT", 2)
    monkeypatch.setattr(producers_module, "ONCE_MAX", 2)
    monkeypatch.setattr(table_module, "ONCE_MAX", 2)
    once = [ONCE_PRODUCER | n for n in range(1, 8)]
    numbers = [1, 2, once[0], 3, 4, 1, 2, 2, *once[1:4], 2, 5, 1, 3, once[4], 3, 1, 4, 6, *once[5:], 7, 1, 8, 8, 1]
    table, sequences, feed = ProducerTable(), dict[int, int](), Feed(tmp_path / "views")
    for first in range(0, len(numbers), size):
        frames = []
        for number in numbers[first : first + size]:
            sequences[number] = sequences.get(number, 0) + 1
            frames.append(frame((16, b"x"), producer_id=number, sequence=sequences[number]))
            table.add(number, sequences[number], feed.end + sum(one.size_bytes for one in frames[:-1]))
        feed.apply(*frames)
        stored = ProducerTable()
        with feed.views.reading() as txn:
            feed.views.producers.restore(txn, stored)
        for kind in ("_producers", "_once"):
            kept = [[(n, list(one.frames)) for n, one in getattr(which, kind).items()] for which in (stored, table)]
            assert kept[0] == kept[1]
    feed.views.close()


def test_a_producer_that_begins_again_loses_its_past(feed):
    at = feed.apply(*(frame((16, b"x"), producer_id=1, sequence=n) for n in (1, 2, 50)))
    table = ProducerTable()
    with feed.views.reading() as txn:
        feed.views.producers.restore(txn, table)
    assert table.find(1, 50) == at[2]
    with pytest.raises(Exception, match="too old"):
        table.find(1, 49)


def test_the_map_grows(tmp_path):
    feed = Feed(tmp_path / "views", map_size_bytes=1 << 20)
    for n in range(8):
        with feed.views.reading() as txn:
            feed.views.kv.get(txn, "0")
        feed.apply(records_frame(KvPut(str(n), bytes(1 << 19))))
    with feed.views.reading() as txn:
        assert all(feed.views.kv.get(txn, str(n)).value == bytes(1 << 19) for n in range(8))
    feed.views.close()
    views = Views(tmp_path / "views", map_size_bytes=1 << 20)
    with views.reading() as txn:
        assert views.kv.get(txn, "7") is not None
    views.close()


def test_who_reads_may_read_once_more_while_the_map_waits_to_grow(tmp_path):
    feed = Feed(tmp_path / "views", map_size_bytes=1 << 20)
    growing = Thread(target=feed.apply, args=[records_frame(KvPut("large", bytes(1 << 20)))], daemon=True)
    with feed.views.reading() as txn:
        growing.start()
        assert until(lambda: feed.views.growing)
        with feed.views.reading() as inner:
            assert feed.views.kv.get(inner, "large") is feed.views.kv.get(txn, "large") is None
        assert feed.views.growing
    growing.join(10)
    with feed.views.reading() as txn:
        assert feed.views.kv.get(txn, "large") is not None
    feed.views.close()


def test_another_format_is_begun_anew(tmp_path, caplog):
    feed = Feed(tmp_path / "views")
    feed.apply(frame((16, b"a")))
    with feed.views.env.begin(write=True) as txn:
        txn.put(b"format", b"0", db=feed.views.meta.handle)
    feed.views.close()
    views = Views(tmp_path / "views")
    assert views.dispatched == 0
    assert "another format" in caplog.text
    views.close()


def test_a_damaged_environment_is_begun_anew(tmp_path, caplog):
    path = tmp_path / "views"
    path.mkdir()
    (path / "data.mdb").write_bytes(b"\x55" * 20_000)
    views = Views(path)
    assert views.dispatched == 0
    assert "damaged" in caplog.text
    views.close()


def test_a_transaction_that_fails_changes_nothing(feed, monkeypatch):
    before = list(feed.views.entries())
    monkeypatch.setattr(feed.views.producers, "apply", lambda *_: (_ for _ in ()).throw(lmdb.DiskError("full")))
    with pytest.raises(StoreFull):
        feed.apply(frame((16, b"a", 7)))
    assert list(feed.views.entries()) == before
    assert feed.views.dispatched == 0
