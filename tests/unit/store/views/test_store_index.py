"""The index by key, address and id: in memory, in the view, across parts, with bounds and pages."""

import random

import pytest

from store.api.log import IndexKind
from store.format.chunks import QueueEnd
from store.format.frame import ROW, ROW_EXTRA, ROW_INDEX_ADDRESS, ROW_INDEX_KEY, Position, UnplacedFrame
from store.format.placed import Placed
from store.format.records import AddressesSeen, LogTrimmed
from store.local.local import LocalStore
from store.log.run import RunBuilder
from store.views import Views
from store.views import index as index_module
from store.views.addresses import listable
from store.views.index import IndexQuery, IndexView
from tests.support.store.store_kit import append, records_frame

pytestmark = pytest.mark.anyio

BOTH = ROW_INDEX_KEY | ROW_INDEX_ADDRESS


def indexed(*rows, queue=16):
    """Returns a frame of rows (key, address, id[, flags])."""
    packed = b"".join(
        ROW.pack(queue, 0, 1, flags[0] if flags else BOTH, key, address, id_, 0) for key, address, id_, *flags in rows
    )
    return UnplacedFrame.build(packed, b"x")


def place(frames, start=0, gap=0, stored=lambda n: n):
    """Gives frames their places, `gap` bytes apart; frame n was stored at `stored(n)`."""
    placed, at = [], start
    for n, one in enumerate(frames):
        header = one.header(log_offset=at, epoch=1, stored_at_ms=stored(n))
        placed.append(Placed(at, stored(n), header, one))
        at += one.size_bytes + gap
    return placed


@pytest.fixture
def views(tmp_path):
    views = Views(tmp_path / "views")
    yield views
    views.close()


def apply(views, placed, runs=1):
    builder = RunBuilder(lambda _queue: QueueEnd())
    cut = max(len(placed) // runs, 1)
    views.apply([builder.build(placed[i : i + cut]) for i in range(0, len(placed), cut)])


def find(views, kind, hash_, *, first=0, limit=None, **bounds):
    wanted = IndexQuery.of(
        kind,
        hash_,
        from_ms=bounds.get("from_ms", 0),
        until_ms=bounds.get("until_ms", 1 << 63),
        below=bounds.get("below"),
    )
    with views.reading() as txn:
        return list(views.index.find(txn, wanted, first))[:limit]


def test_newest_first_and_by_its_own_kind(views):
    frames = [indexed((1, 2, 3), (1, 9, 0)), indexed((2, 1, 3)), indexed((1, 2, 0), (1, 2, 0))]
    placed = place(frames)
    apply(views, placed)
    at = [p.start for p in placed]
    assert find(views, IndexKind.KEY, 1) == [(at[2], 1), (at[2], 0), (at[0], 1), (at[0], 0)]
    assert find(views, IndexKind.ADDRESS, 2) == [(at[2], 1), (at[2], 0), (at[0], 0)]
    assert find(views, IndexKind.ID, 3) == [(at[1], 0), (at[0], 0)]
    assert find(views, IndexKind.ID, 4) == []


def test_only_what_its_flags_say(views):
    reserved = indexed((1, 1, 1), queue=1)
    frames = [
        indexed((1, 1, 1, 0)),
        indexed((1, 1, 1, ROW_INDEX_KEY)),
        indexed((1, 1, 1, BOTH | ROW_EXTRA)),
        reserved,
        indexed((0, 0, 0)),
    ]
    placed = place(frames)
    apply(views, placed)
    assert find(views, IndexKind.KEY, 1) == [(placed[1].start, 0)]
    assert find(views, IndexKind.ADDRESS, 1) == []
    assert find(views, IndexKind.ID, 1) == [(placed[1].start, 0), (placed[0].start, 0)]
    assert find(views, IndexKind.KEY, 0) == []


def test_bounds_of_time_and_position_against_a_plain_list(views, monkeypatch):
    chance = random.Random(4)
    # Parts of a few frames each, some parts with nothing in them.
    frames = [indexed(*((chance.randint(1, 3), 0, 0) for _ in range(chance.randint(1, 4)))) for _ in range(300)]
    gaps = index_module.PART_BYTES // 7
    placed = place(frames, gap=gaps, stored=lambda n: 1000 + n // 3)
    apply(views, placed, runs=9)
    plain = [
        (Position(p.start, row), p.stored_at_ms, key)
        for p in placed
        for row, (_, _, _, _, key, *_) in enumerate(ROW.iter_unpack(p.frame.rows))
    ][::-1]
    for _ in range(300):
        key, first = chance.randint(1, 4), chance.choice([0, placed[chance.randrange(300)].start])
        low, high = sorted((chance.randint(990, 1110), chance.randint(990, 1110)))
        below = chance.choice([None, chance.choice(plain)[0]])
        bounds = {"from_ms": low, "until_ms": high, "below": below}
        expected = [
            at
            for at, stored, its in plain
            if its == key and low <= stored < high and at.frame >= first and (below is None or at < below)
        ]
        assert find(views, IndexKind.KEY, key, first=first, **bounds) == expected


def test_many_frames_stored_before_a_time_are_found_by_halving(views):
    placed = place([indexed((1, 0, 0)) for _ in range(2000)], stored=lambda n: n // 10)
    apply(views, placed, runs=20)
    for until in (0, 1, 57, 199, 200, 500):
        found = find(views, IndexKind.KEY, 1, until_ms=until)
        assert found == [(p.start, 0) for p in reversed(placed) if p.stored_at_ms < until]


def test_the_same_however_frames_were_cut_into_runs(tmp_path):
    chance = random.Random(5)
    frames = [
        indexed(
            *((chance.randint(0, 5), chance.randint(0, 3), chance.randint(0, 2)) for _ in range(chance.randint(0, 9)))
        )
        for _ in range(60)
    ]
    entries = []
    for name, runs in (("one", 1), ("many", 60), ("some", 7)):
        views = Views(tmp_path / name)
        builder = RunBuilder(lambda _queue: QueueEnd())
        placed = place(frames, gap=index_module.PART_BYTES // 5)
        cut = len(placed) // runs
        for i in range(0, len(placed), cut):
            views.apply([builder.build(placed[i : i + cut])])
        entries.append([entry for entry in views.entries() if entry[0] == b"index"])
        views.close()
    assert entries[0] == entries[1] == entries[2]
    assert len(entries[0]) > 100


def test_parts_below_a_trimmed_log_are_dropped_whole(views):
    placed = place([indexed((1, 1, 1)) for _ in range(20)], gap=index_module.PART_BYTES // 4)
    apply(views, placed)
    first = placed[10].start
    trim = place([records_frame(LogTrimmed(first, 0))], start=placed[-1].end)
    views.apply([RunBuilder(lambda _queue: QueueEnd()).build(trim)])
    kept = [p for p in placed if p.start >> index_module.PART_BITS >= first >> index_module.PART_BITS]
    assert find(views, IndexKind.KEY, 1) == [(p.start, 0) for p in reversed(kept)]
    assert find(views, IndexKind.KEY, 1, first=first) == [(p.start, 0) for p in reversed(placed[10:])]
    with views.reading() as txn:
        assert views.index.entries(txn) < 3 * len(kept) + len(kept) + 1


def test_an_empty_view_has_nothing(views):
    assert find(views, IndexKind.KEY, 1) == []
    assert isinstance(views.index, IndexView)
    with views.reading() as txn:
        assert views.index.entries(txn) == 0


@pytest.mark.parametrize("linger_s", [0.0005, 3600])
async def test_memory_and_view_answer_alike(tmp_path, linger_s):
    chance = random.Random(6)
    async with await LocalStore.open(tmp_path, linger_s=linger_s) as store:
        expected = []
        for _ in range(40):
            rows = [(chance.randint(1, 3), 0, 0) for _ in range(chance.randint(1, 5))]
            appended = await append(store, indexed(*rows))
            expected = [
                Position(appended.frame, row) for row in reversed(range(len(rows))) if rows[row][0] == 1
            ] + expected
            assert await store.log.find(IndexKind.KEY, 1) == expected[:100]
        paged, below = [], None
        while page := await store.log.find(IndexKind.KEY, 1, below=below, limit=3):
            paged += page
            below = page[-1]
        assert paged == expected
        assert await store.log.find(IndexKind.KEY, 1, limit=0) == []
    async with await LocalStore.open(tmp_path, linger_s=linger_s) as store:
        assert await store.log.find(IndexKind.KEY, 1) == expected


async def test_addresses_are_listed_in_order_from_memory_and_view(tmp_path):
    async with await LocalStore.open(tmp_path, linger_s=3600) as store:
        await append(store, records_frame(AddressesSeen(("t/b", "t/a", "u", "é/ü")), AddressesSeen(("t/a",))))
        assert await store.log.addresses() == ["t/a", "t/b", "u", "é/ü"]
    async with await LocalStore.open(tmp_path, linger_s=3600) as store:
        await append(store, records_frame(AddressesSeen(("t/aa", "t/b"))))
        assert await store.log.addresses("t/") == ["t/a", "t/aa", "t/b"]
        assert await store.log.addresses("t/", after="t/a") == ["t/aa", "t/b"]
        assert await store.log.addresses(after="t/aa", limit=2) == ["t/b", "u"]
        assert await store.log.addresses("x") == []


async def test_an_address_too_long_to_be_listed_is_passed_over(tmp_path):
    long = "a" * 481
    assert not listable(long)
    assert listable(long[1:])
    async with await LocalStore.open(tmp_path, linger_s=3600) as store:
        await append(store, records_frame(AddressesSeen((long, "ok"))))
        assert await store.log.addresses() == ["ok"]
    async with await LocalStore.open(tmp_path) as store:
        assert await store.log.addresses() == ["ok"]


@pytest.mark.parametrize("linger_s", [0.0005, 3600])
async def test_an_address_is_noted_once(tmp_path, linger_s):
    async with await LocalStore.open(tmp_path, linger_s=linger_s) as store:
        await store.log.note_addresses(["b", "a", "b", "x" * 500])
        end = store.log.confirmed
        await store.log.note_addresses(["a", "b"])
        assert store.log.confirmed == end > 0
        await store.log.note_addresses(["a", "c"])
        assert store.log.confirmed > end
        assert await store.log.addresses() == ["a", "b", "c"]
    async with await LocalStore.open(tmp_path, linger_s=linger_s) as store:
        end = store.log.confirmed
        await store.log.note_addresses(["a", "b", "c"])
        await store.log.note_addresses([])
        assert store.log.confirmed == end
