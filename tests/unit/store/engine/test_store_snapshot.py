"""A replica that begins with a snapshot of the views, and fills its log up to it."""

import asyncio
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread
from unittest import mock

import pytest

from store.base.errors import (
    CorruptFrame,
    DataDirLocked,
    NotRebuildable,
    OffsetOutOfRange,
    ReplicaIncomplete,
    SnapshotUnusable,
)
from store.disk.files import OsFiles
from store.engine import snapshot as snapshot_module
from store.engine.snapshot import filling, finish_install, install_snapshot, snapshot_info
from store.format.frame import LogOffset, origin_of
from store.integrity.floor import FLOOR_FILE, read_floor
from store.local.local import LocalStore
from store.log.retention import RetentionLimits
from store.replication.epoch_file import EPOCH_FILES, EpochFile
from store.replication.epochs import EpochList
from store.views import Views
from tests.support.process.waiting import until
from tests.support.store.replica_kit import feed, open_master, open_replica
from tests.support.store.store_kit import append, bodies, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

GROUP = 2
OPTIONS = {
    "group": GROUP,
    "linger_s": 0.001,
    "segment_size_bytes": 1_000,
    "retention": RetentionLimits(size_bytes=1_500),
}


@pytest.fixture
async def master(tmp_path):
    """Returns a master that has deleted the front of its log, and has what it held in the views only."""
    store = await open_master(tmp_path / "master", alone=True, **OPTIONS)
    await store.keys.put("old", b"v")
    await fill(store, range(40))
    await trim(store)
    assert store.replication.first > origin_of(GROUP)
    yield store
    await store.step_down()


async def fill(store, numbers):
    for n in numbers:
        await append(store, frame((16, b"%03d" % n + bytes(60), n + 1)))


async def trim(store):
    await store.core.until_dispatched(store.log.confirmed)
    await asyncio.get_running_loop().run_in_executor(None, store.core.engine.trimmer.run)


def entries(store):
    return list(store.core.engine.views.entries())


async def caught_up(master, replica):
    await feed(master, replica)
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    for store in (master, replica):
        await store.core.until_dispatched(store.log.confirmed)


async def test_a_replica_that_is_too_far_behind_begins_anew(master, tmp_path):
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    with pytest.raises(OffsetOutOfRange):
        await master.replication.read_log(replica.replication.end, 1 << 20)
    await replica.close()
    info = await master.replication.snapshot(tmp_path / "replica" / "coming")
    assert info == snapshot_info(tmp_path / "replica" / "coming")
    assert (info.group, info.first, info.dispatched) == (
        GROUP,
        master.replication.first,
        master.core.engine.views.dispatched,
    )
    await fill(master, range(40, 43))
    install_snapshot(tmp_path / "replica", tmp_path / "replica" / "coming")
    assert sorted(path.name for path in (tmp_path / "replica").iterdir()) == ["LOCK", "filling", "group", "views"]
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    assert replica.replication.first == replica.replication.end == replica.log.confirmed == info.first

    # Until its log has come to where the snapshot was taken it can be neither read nor master.
    for refused in (
        replica.queues.fetch(16, 0, max_bytes=1),
        replica.keys.get("old"),
        replica.log.last(5),
        replica.log.addresses(),
    ):
        with pytest.raises(ReplicaIncomplete):
            await refused
    at = replica.replication.receive(await master.replication.read_log(replica.replication.end, 500))
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == at < info.dispatched)
    with pytest.raises(ReplicaIncomplete):
        await replica.keys.get("old")
    await replica.close()
    with pytest.raises(ReplicaIncomplete):
        await LocalStore.open(tmp_path / "replica", **OPTIONS)
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    assert replica.replication.end == replica.log.confirmed == at

    await caught_up(master, replica)
    assert (await replica.keys.get("old")).value == b"v"
    assert entries(replica) == entries(master)
    bounds = await master.queues.bounds(16)
    assert await replica.queues.bounds(16) == bounds
    assert await bodies(replica, 16, bounds.first) == await bodies(master, 16, bounds.first)
    await replica.close()
    async with await LocalStore.open(tmp_path / "replica", **OPTIONS) as new:
        assert await bodies(new, 16, bounds.first) == await bodies(master, 16, bounds.first)
        assert (await new.keys.get("old")).value == b"v"


async def test_a_log_that_has_lost_its_end_goes_on_lacking_it_behind_a_snapshot(master, tmp_path):
    """A member of the SyncStateSet may have confirmed what it has lost: it is not electable before it has it again."""
    await master.replication.snapshot(tmp_path / "coming")
    lost_end = master.replication.end
    install_snapshot(tmp_path / "replica", tmp_path / "coming", lost_end=lost_end)
    for _ in range(2):  # opened again, it has not forgotten
        replica = await open_replica(tmp_path / "replica", **OPTIONS)
        assert replica.replication.lost_end == lost_end
        assert [(one.start, one.end) for one in replica.damages] == [(replica.replication.end, lost_end)]
        await replica.close()
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    await caught_up(master, replica)
    await until(lambda: replica.replication.lost_end is None)
    assert not replica.is_damaged
    assert entries(replica) == entries(master)
    await replica.close()


async def test_its_confirmed_end_counts_in_the_log(master, tmp_path):
    """The end that the master confirms moves what can be read, also while the views are ahead."""
    await master.replication.snapshot(tmp_path / "coming")
    info = install_snapshot(tmp_path / "replica", tmp_path / "coming")
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    seen = []
    replica.log.tail(seen.extend)
    await feed(master, replica)
    replica.replication.confirm(info.first + 100)
    await until(lambda: replica.log.confirmed == info.first + 100)
    replica.replication.confirm(info.dispatched)
    await until(lambda: replica.log.confirmed == info.dispatched)
    assert await replica.keys.get("old") is not None
    assert seen == []  # no new frame
    await replica.close()


async def test_a_snapshot_while_appends_go_on(master, tmp_path):
    writing = asyncio.ensure_future(fill(master, range(50, 90)))
    for n in range(5):
        info = await master.replication.snapshot(tmp_path / str(n))
        install_snapshot(tmp_path / f"replica{n}", tmp_path / str(n))
        views = Views(tmp_path / f"replica{n}" / "views", origin=origin_of(GROUP))
        assert views.dispatched == info.dispatched
        views.close()
    await writing
    replica = await open_replica(tmp_path / "replica0", **OPTIONS)
    await caught_up(master, replica)
    assert entries(replica) == entries(master)
    await replica.close()


async def test_one_that_is_trimmed_meanwhile_begins_where_the_log_does(master, tmp_path, monkeypatch):
    loop = asyncio.get_running_loop()
    copy = snapshot_module._copy

    def slow(*args):
        size = copy(*args)
        asyncio.run_coroutine_threadsafe(fill(master, range(50, 60)), loop).result(10)
        asyncio.run_coroutine_threadsafe(trim(master), loop).result(10)
        return size

    monkeypatch.setattr(snapshot_module, "_copy", slow)
    before = master.replication.first
    info = await master.replication.snapshot(tmp_path / "one")
    assert before < info.first == master.replication.first <= info.dispatched
    install_snapshot(tmp_path / "replica", tmp_path / "one")
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    await caught_up(master, replica)
    assert entries(replica) == entries(master)
    await replica.close()

    def slower(*args):
        size = copy(*args)
        asyncio.run_coroutine_threadsafe(fill(master, range(60, 100)), loop).result(10)
        asyncio.run_coroutine_threadsafe(trim(master), loop).result(10)
        return size

    monkeypatch.setattr(snapshot_module, "_copy", slower)
    with pytest.raises(SnapshotUnusable, match="the log begins at"):
        await master.replication.snapshot(tmp_path / "other")


async def test_a_copy_is_given_up_when_the_store_closes(tmp_path):
    master = await open_master(tmp_path / "master", alone=True)
    for n in range(20):
        await master.keys.put(f"{n}", bytes(100_000))
    await master.core.until_dispatched(master.log.confirmed)
    begun, go_on = Event(), Event()
    read = snapshot_module.os.read

    def slow(*args):
        begun.set()
        go_on.wait(10)
        return read(*args)

    with mock.patch.object(snapshot_module.os, "read", slow):
        copying = asyncio.ensure_future(master.replication.snapshot(tmp_path / "one"))
        await until(begun.is_set)
        closing = asyncio.ensure_future(master.step_down())
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(SnapshotUnusable, match="given up"):
            await copying
        await closing


async def test_a_copy_leaves_the_reserve_to_the_log(tmp_path, monkeypatch):
    """A copy made writes be refused where the disk had room for the reserve and not for both."""
    reserve, free = 16 << 20, [1 << 40]
    monkeypatch.setattr(OsFiles, "free_bytes", lambda _self, _path: free[0])
    store = await open_master(tmp_path / "master", alone=True, disk_reserve_bytes=reserve)
    await fill(store, range(100))
    free[0] = reserve - 1
    with pytest.raises(SnapshotUnusable, match=rf"{free[0]} bytes are free .*store\.disk_reserve_bytes"):
        await store.replication.snapshot(tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    free[0] = 1 << 40
    monkeypatch.setattr(snapshot_module, "write_whole", lambda *_: free.__setitem__(0, 1 << 20))
    with pytest.raises(SnapshotUnusable, match="given up after"):
        await store.replication.snapshot(tmp_path / "begun")
    free[0] = 1 << 40
    await store.step_down()


async def test_copies_of_processes_that_were_killed_are_removed(tmp_path):
    store = await LocalStore.open(tmp_path)
    await fill(store, range(3))
    await store.close()
    for name in ("snapshot.sent", "snapshot.fetched", "incoming/views", ".verified-abc/views"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "data.mdb").write_bytes(b"x")
    (tmp_path / "log" / "0000000000000000.new").write_bytes(b"x")
    before = {"LOCK", "log", "views"}
    store = await LocalStore.open(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert before <= names
    assert not names & {"snapshot.sent", "snapshot.fetched", "incoming", ".verified-abc"}
    assert not list((tmp_path / "log").glob("*.new"))
    assert await bodies(store, 16) == [b"%03d" % n + bytes(60) for n in range(3)]
    await store.close()


async def test_a_copy_that_takes_too_long(master, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_module, "SNAPSHOT_S_MAX", -1.0)
    with pytest.raises(SnapshotUnusable, match="given up"):
        await master.replication.snapshot(tmp_path / "one")


async def test_a_copy_makes_way_for_the_views_to_grow(tmp_path):
    master = await open_master(tmp_path / "master", alone=True, map_size_bytes=1 << 22, linger_s=0.001)
    for n in range(20):
        await master.keys.put(f"{n}", bytes(100_000))
    await master.core.until_dispatched(master.log.confirmed)
    read, grew = snapshot_module.os.read, []

    def slow(*args):
        time.sleep(0.02)  # for each 64 KiB, which is what a pipe holds
        some = read(*args)
        grew.append(master.core.engine.views.growing)
        return some

    with mock.patch.object(snapshot_module.os, "read", slow):
        copying = asyncio.ensure_future(master.replication.snapshot(tmp_path / "one"))
        n = 20
        while not copying.done():
            n += 1
            await master.keys.put(f"{n}", bytes(50_000))
        with pytest.raises(SnapshotUnusable, match="given up"):
            await copying
        assert any(grew)
    await master.core.until_dispatched(master.log.confirmed)
    await master.replication.snapshot(tmp_path / "other")
    await master.step_down()


async def test_what_is_no_snapshot(master, tmp_path):
    await master.replication.snapshot(tmp_path / "good")
    with pytest.raises(SnapshotUnusable):
        install_snapshot(tmp_path / "replica", tmp_path / "missing")

    def damaged(name, change):
        shutil.copytree(tmp_path / "good", tmp_path / "bad")
        path = tmp_path / "bad" / name
        path.write_bytes(change(path.read_bytes()))

    hurts = [
        ("snapshot", lambda data: data[:-2]),
        ("snapshot", lambda data: data.replace(b'"group":2', b'"group":3')),
        ("data.mdb", lambda data: data[:-4096]),
        ("data.mdb", lambda data: bytes(8192) + data[8192:]),
        ("data.mdb", lambda data: data + bytes(4096)),
    ]
    for name, change in hurts:
        damaged(name, change)
        with pytest.raises(SnapshotUnusable):
            install_snapshot(tmp_path / "replica", tmp_path / "bad")
        shutil.rmtree(tmp_path / "bad")
    assert not (tmp_path / "replica" / "views").exists()
    with pytest.raises(DataDirLocked):
        install_snapshot(tmp_path / "master", tmp_path / "good")
    install_snapshot(tmp_path / "replica", tmp_path / "good")


class Killed(BaseException):
    pass


@contextmanager
def killed_at(n):
    """Ends the process at this thread's n-th moment before or after an operation on the disk."""
    left = n
    dying = current_thread()  # a master beside it goes on with its own files

    def moment():
        nonlocal left
        if current_thread() is not dying:
            return
        left -= 1
        if left < 0:
            raise Killed

    def stop(real):
        def call(*args, **options):
            moment()
            result = real(*args, **options)
            moment()
            return result

        return call

    with (
        mock.patch.object(Path, "rename", stop(Path.rename)),
        mock.patch.object(shutil, "move", stop(shutil.move)),
        mock.patch.object(shutil, "rmtree", stop(shutil.rmtree)),
        mock.patch.object(OsFiles, "sync_directory", stop(OsFiles.sync_directory)),
        mock.patch.object(OsFiles, "make_directory", stop(OsFiles.make_directory)),
        mock.patch.object(OsFiles, "open", stop(OsFiles.open)),
    ):
        yield


async def test_an_installation_that_is_cut_short(master, tmp_path):
    """Whenever that is: the replica is as it was, or what the snapshot says, and a second try succeeds."""
    old = await open_replica(tmp_path / "old", **{**OPTIONS, "segment_size_bytes": 1 << 20})
    await old.close()
    await master.replication.snapshot(tmp_path / "snapshot")
    n, killed, seen = 0, True, set()
    while killed:
        home = tmp_path / str(n)
        shutil.copytree(tmp_path / "old", home)
        shutil.copytree(tmp_path / "snapshot", home / "coming")
        killed = False
        try:
            with killed_at(n):
                install_snapshot(home, home / "coming")
        except Killed:
            killed = True
        replica = await open_replica(home, **OPTIONS)
        seen.add(replica.replication.first)
        assert replica.replication.first in {origin_of(GROUP), master.replication.first}
        assert replica.replication.end == replica.replication.first
        began = replica.replication.first == master.replication.first
        await replica.close()
        if not began:
            if not (home / "coming" / "data.mdb").exists():
                shutil.rmtree(home / "coming", ignore_errors=True)
                shutil.copytree(tmp_path / "snapshot", home / "coming")
            install_snapshot(home, home / "coming")
        replica = await open_replica(home, **OPTIONS)
        await caught_up(master, replica)
        assert entries(replica) == entries(master)
        await replica.close()
        shutil.rmtree(home)
        n += 1
    assert n > 20
    assert len(seen) == 2


async def test_an_installation_that_is_cut_short_forgets_no_lost_end(master, tmp_path):
    """The new floor was taken for the former log's, where the process was killed behind the rename."""
    await (await open_replica(tmp_path / "old", **OPTIONS)).close()
    await master.replication.snapshot(tmp_path / "snapshot")
    files, lost = OsFiles(), LogOffset(master.replication.end + 5_000)
    n, killed, installed = 0, True, 0
    while killed:
        home = tmp_path / str(n)
        shutil.copytree(tmp_path / "old", home)
        shutil.copytree(tmp_path / "snapshot", home / "coming")
        killed = False
        try:
            with killed_at(n):
                install_snapshot(home, home / "coming", lost_end=lost)
        except Killed:
            killed = True
        finish_install(home)
        if filling(home) is not None:
            installed += 1
            assert read_floor(files, home / FLOOR_FILE) == lost
        shutil.rmtree(home)
        n += 1
    assert n - 1 > installed > 10


@pytest.mark.parametrize("names", [EPOCH_FILES, EPOCH_FILES[:1]], ids=["both files", "one, of an older version"])
async def test_an_installation_that_is_cut_short_leaves_the_epochs_of_its_log(master, tmp_path, names):
    await (await open_replica(tmp_path / "old", **OPTIONS)).close()
    await master.replication.snapshot(tmp_path / "snapshot")
    old, new = (EpochFile(OsFiles(), tmp_path / name) for name in ("old", "snapshot"))
    before, after = (EpochList.of([(1, 0)]), 1), (EpochList.of([(7, 0)]), 7)
    for _ in range(3):
        old.save(*before)
    new.save(*after)
    for name in set(EPOCH_FILES) - set(names):
        (tmp_path / "snapshot" / name).unlink()
    n, killed, installed = 0, True, 0
    while killed:
        home = tmp_path / str(n)
        shutil.copytree(tmp_path / "old", home)
        shutil.copytree(tmp_path / "snapshot", home / "coming")
        killed = False
        try:
            with killed_at(n):
                install_snapshot(home, home / "coming")
        except Killed:
            killed = True
        finish_install(home)
        installed += filling(home) is not None
        assert EpochFile(OsFiles(), home).load() == (before if filling(home) is None else after)
        if filling(home) is not None:
            assert [name for name in EPOCH_FILES if (home / name).exists()] == list(names)
        shutil.rmtree(home)
        n += 1
    assert n - 1 > installed > 10


async def test_without_a_snapshot_lost_views_of_a_trimmed_log_are_lost(master, tmp_path):
    await master.replication.snapshot(tmp_path / "one")
    install_snapshot(tmp_path / "replica", tmp_path / "one")
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    await caught_up(master, replica)
    await replica.close()
    shutil.rmtree(tmp_path / "replica" / "views")
    with pytest.raises(NotRebuildable):
        await open_replica(tmp_path / "replica", **OPTIONS)
    await master.replication.snapshot(tmp_path / "one")  # but for a replica there is always another snapshot
    install_snapshot(tmp_path / "replica", tmp_path / "one")
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    await caught_up(master, replica)
    await replica.close()


async def test_frames_behind_the_beginning_only(master, tmp_path):
    await master.replication.snapshot(tmp_path / "one")
    info = install_snapshot(tmp_path / "replica", tmp_path / "one")
    replica = await open_replica(tmp_path / "replica", **OPTIONS)
    data = await master.replication.read_log(info.first, 1 << 20)
    with pytest.raises(CorruptFrame):
        replica.replication.receive(data[frame((16, bytes(63), 1)).size_bytes :])
    await replica.close()


async def test_trimming_a_replica_that_began_with_a_snapshot(master, tmp_path):
    await master.replication.snapshot(tmp_path / "one")
    install_snapshot(tmp_path / "replica", tmp_path / "one")
    replica = await open_replica(tmp_path / "replica", retention_interval_s=0.01, **OPTIONS)
    await caught_up(master, replica)
    await fill(master, range(40, 80))
    await caught_up(master, replica)
    await trim(master)
    await caught_up(master, replica)
    await until(lambda: replica.replication.first == master.replication.first)
    await replica.close()


async def test_a_snapshot_whose_views_are_damaged_is_not_installed(master, tmp_path):
    await master.keys.put("key", b"a value that nobody else has")
    await master.core.until_dispatched(master.log.confirmed)
    info = await master.replication.snapshot(tmp_path / "coming")
    path = tmp_path / "coming" / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.find(b"a value that nobody else has")
    assert at > 0
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotUnusable, match="damaged"):
        install_snapshot(tmp_path / "replica", tmp_path / "coming")
    assert info.group == GROUP
    assert not (tmp_path / "replica" / "views").exists()
