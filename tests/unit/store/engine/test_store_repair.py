"""A data directory that nobody has open: verified, compared, rebuilt, measured; never while a store runs on it."""

import asyncio

import pytest

from store.base.errors import DataDirLocked, NotRebuildable
from store.disk.files import OsFiles
from store.engine.repair import NoDataDir, StoppedStore
from store.format.frame import HEADER, Frame
from store.local.local import LocalStore
from store.log.log import CommitLog
from store.log.segment import BadRange
from store.views import Views
from tests.support.store.flips import flip_frame
from tests.support.store.store_kit import append, frame

pytestmark = pytest.mark.slow

COUNT = 60


@pytest.fixture
def data_dir(tmp_path):
    directory = tmp_path / "data"

    async def fill():
        async with await LocalStore.open(directory, segment_size_bytes=2_000) as store:
            for n in range(COUNT):
                await append(store, frame((16 + n % 2, b"%03d" % n + bytes(100), n % 5 + 1)))
            await store.keys.put("a", b"1")

    asyncio.run(fill())
    return directory


def frames_of(directory):
    with StoppedStore(directory) as store:
        return [item for item in store.items() if isinstance(item, Frame)]


def entries_of(directory):
    views = Views(directory / "views")
    found = list(views.entries())
    views.close()
    return found


def test_a_sound_directory(data_dir):
    before = {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file() and path.parent.name == "log"}
    seen = []
    with StoppedStore(data_dir) as store:
        found = store.verify(seen.append)
        assert found.frames == len(seen) == COUNT + 1
        assert (found.records, found.sound_bytes) == (COUNT + 1, store.end)
        assert (found.damages, found.torn) == ([], None)
        compared = store.verify_views(lambda at, end: seen.append((at, end)))
        assert (compared.different, seen[-1]) == ({}, (store.end, store.end))
        assert compared.same > COUNT
        stats = store.stats()
    assert (stats.first, stats.end, stats.dispatched) == (0, found.sound_bytes, found.sound_bytes)
    assert stats.segments == len(before) > 3
    assert stats.log_bytes == sum(map(len, before.values()))
    by_name = {view.name: view for view in stats.views}
    assert by_name["queues"].entries == COUNT + 1
    assert by_name["queues"].size_bytes > 0
    assert all(path.read_bytes() == data for path, data in before.items())
    assert not list(data_dir.glob("verify-*"))


@pytest.mark.parametrize("at", [1, 9, HEADER.size + 1, HEADER.size + 60])
def test_damage_is_found_with_its_segment(data_dir, at):
    hurt = frames_of(data_dir)[23]
    name = flip_frame(data_dir, hurt, at)
    with StoppedStore(data_dir) as store:
        found = store.verify()
        items = list(store.items())
        (damage,) = found.damages
        assert (damage.segment, damage.start, damage.end, damage.found_by) == (name, hurt.start, hurt.end, "verify")
        assert found.frames == COUNT
        assert [(one.start, one.end) for one in items if isinstance(one, BadRange)] == [(hurt.start, hurt.end)]


def test_a_torn_tail_is_no_damage_and_stays_until_a_start(data_dir):
    last = max((data_dir / "log").iterdir())
    with last.open("ab") as file:
        file.write(b"HGF1 and no more")
    size = last.stat().st_size
    with StoppedStore(data_dir) as store:
        found = store.verify()
        assert found.torn.end - found.torn.start == 16
        assert not found.damages
    assert last.stat().st_size == size
    with StoppedStore(data_dir) as store:
        store.rebuild_views()
    assert last.stat().st_size == size - 16


def test_views_that_differ_are_told_apart_and_made_anew(data_dir):
    before = entries_of(data_dir)
    views = Views(data_dir / "views")
    with views.env.begin(write=True) as txn:
        last, kv = views.env.open_db(b"last", txn=txn), views.env.open_db(b"kv", txn=txn)
        txn.put((1).to_bytes(8, "big"), bytes(12), db=last)
        txn.put((77).to_bytes(8, "big"), bytes(12), db=last)
        with txn.cursor(db=kv) as cursor:
            assert cursor.first()
            cursor.delete()
    views.close()
    with StoppedStore(data_dir) as store:
        assert store.verify_views().different == {"last": 2, "kv": 1}
        seen = []
        assert store.rebuild_views(lambda at, end: seen.append((at, end))) == store.end
        assert seen[-1] == (store.end, store.end)
        assert store.verify_views().different == {}
    assert entries_of(data_dir) == before


def test_views_that_are_behind_are_compared_as_far_as_they_are(data_dir):
    (data_dir / "views" / "data.mdb").unlink()
    Views(data_dir / "views").close()
    with StoppedStore(data_dir) as store:
        found = store.verify_views()
        assert (found.different, found.is_sound) == ({}, False)
        assert store.stats().dispatched == 0


def test_views_that_cannot_be_opened_are_not_touched(data_dir):
    path = data_dir / "views" / "data.mdb"
    path.write_bytes(b"this is no LMDB" * 1000)
    with StoppedStore(data_dir) as store:
        stats = store.stats()
        assert (stats.dispatched, stats.views) == (0, [])
    assert path.read_bytes().startswith(b"this is no LMDB")


def test_views_that_have_lost_their_end_are_counted_as_none(data_dir):
    path = data_dir / "views" / "data.mdb"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with StoppedStore(data_dir) as store:
        stats = store.stats()
        assert (stats.dispatched, stats.views) == (0, [])


def test_what_the_log_has_lost_is_not_rebuilt_unless_forced(data_dir):
    log = CommitLog(OsFiles(), data_dir / "log")
    second = log.sealed_ends()[0]
    log.close()
    min((data_dir / "log").iterdir()).unlink()
    with StoppedStore(data_dir) as store:
        assert store.first == second
        for work in (store.rebuild_views, store.verify_views):
            with pytest.raises(NotRebuildable, match=str(second)):
                work()
        assert [(damage.start, damage.end) for damage in store.verify().damages] == [(0, second)]
        assert store.rebuild_views(force=True) == store.end


def test_a_log_without_its_last_segment_is_damaged(data_dir):
    last = max((data_dir / "log").iterdir())
    start, size = int(last.stem), last.stat().st_size
    last.unlink()
    with StoppedStore(data_dir) as store:
        assert [(damage.start, damage.end) for damage in store.verify().damages] == [(start, start + size)]


@pytest.mark.anyio
@pytest.mark.parametrize("which", [0, -1])
async def test_a_store_tells_which_segments_are_missing(data_dir, which):
    paths = sorted((data_dir / "log").iterdir())
    start, end = int(paths[which].stem), int(paths[which].stem) + paths[which].stat().st_size
    paths[which].unlink()
    async with await LocalStore.open(data_dir, segment_size_bytes=1000) as store:
        assert [(damage.start, damage.end) for damage in store.damages] == [(start, end)]


def files_of(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock.mdb"}


@pytest.mark.parametrize("how", ["missing", "cut", "junk", "format"])
def test_views_that_cannot_be_compared_are_told_and_left_as_they_are(data_dir, how):
    path = data_dir / "views" / "data.mdb"
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    elif how == "junk":
        path.write_bytes(b"this is no LMDB" * 1000)
    else:
        views = Views(data_dir / "views")
        with views.env.begin(write=True) as txn:
            txn.put(b"format", b"0", db=views.meta.handle)
        views.close()
    before = files_of(data_dir)
    with StoppedStore(data_dir) as store:
        found = store.verify_views()
        assert not found.is_sound
        assert found.problem == {
            "missing": "the views are missing",
            "format": "the views are of another format",
        }.get(how, "the views cannot be read")
        assert store.verify().damages == []
    assert files_of(data_dir) == before


@pytest.mark.anyio
async def test_never_while_a_store_runs(data_dir):
    async with await LocalStore.open(data_dir):
        with pytest.raises(DataDirLocked, match="in use by process"):
            StoppedStore(data_dir)
    with StoppedStore(data_dir), pytest.raises(DataDirLocked):
        await LocalStore.open(data_dir)


def test_a_directory_without_a_store_is_left_alone(tmp_path):
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(NoDataDir, match="holds no store"):
            StoppedStore(directory)
    assert list(tmp_path.iterdir()) == []
