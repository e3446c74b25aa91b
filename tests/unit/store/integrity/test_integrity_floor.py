"""The floor: exact after a kill, never newer than the log, and lowered before the log is cut."""

import errno

import pytest

from store.base.errors import CorruptFrame
from store.disk.files import OsFiles
from store.format.frame import ROW
from store.integrity.floor import Floor, read_floor
from store.local.local import LocalStore
from tests.support.process.waiting import until
from tests.support.store.flips import flip
from tests.support.store.replica_kit import feed, log_bytes, open_master, open_replica
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio

SIZE = 64 + ROW.size + 50  # of a frame of one record of 50 bytes


def numbered(n):
    return frame((16, b"%050d" % n))


def test_the_floor_is_kept_and_never_goes_back_by_itself(tmp_path):
    floor = Floor(OsFiles(), tmp_path / "floor")
    for at in (100, 300, 200):
        floor.raise_to(at)
    floor.close()
    assert read_floor(OsFiles(), tmp_path / "floor") == 300
    floor = Floor(OsFiles(), tmp_path / "floor")
    floor.lower(50)
    floor.lower(70)
    floor.raise_to(60)
    floor.close()
    assert read_floor(OsFiles(), tmp_path / "floor") == 60


@pytest.mark.parametrize("hurt", [3, 10, 20, 515, 530])
def test_a_torn_write_leaves_the_older_floor(tmp_path, hurt):
    floor = Floor(OsFiles(), tmp_path / "floor")
    floor.raise_to(100)
    floor.raise_to(200)
    floor.close()
    data = bytearray((tmp_path / "floor").read_bytes())
    data[hurt] ^= 4
    (tmp_path / "floor").write_bytes(data)
    assert read_floor(OsFiles(), tmp_path / "floor") in {100, 200}


def test_a_floor_that_cannot_be_read_is_said_and_is_none(tmp_path, caplog):
    (tmp_path / "floor").write_bytes(b"nonsense" * 128)
    assert Floor(OsFiles(), tmp_path / "floor").at == 0
    assert "`floor` is damaged" in caplog.text


def test_a_disk_that_takes_nothing_keeps_the_log_going(tmp_path, caplog):
    files = FaultyFiles()
    floor = Floor(files, tmp_path / "floor")
    files.write_error = errno.EIO
    floor.raise_to(100)
    floor.raise_to(200)
    assert caplog.text.count("`floor` cannot be written") == 1


async def test_the_floor_is_exact_while_the_store_runs(tmp_path):
    """So it is after a kill: what is written is in the page cache."""
    async with await LocalStore.open(tmp_path) as store:
        for n in range(5):
            await append(store, numbered(n))
            assert read_floor(OsFiles(), tmp_path / "floor") == store.replication.flushed == (n + 1) * SIZE


async def replicated(tmp_path, count=6, confirmed=2):
    """Returns a master whose replica's views are behind the replica's log; the replica is closed."""
    master = await open_master(tmp_path / "master", alone=True)
    replica = await open_replica(tmp_path / "replica")
    for n in range(count):
        await append(master, numbered(n))
    await feed(master, replica)
    replica.replication.confirm(confirmed * SIZE)
    await until(lambda: replica.log.confirmed == confirmed * SIZE)
    await replica.close()
    return master


def flip_log(directory, at):
    (path,) = (directory / "log").iterdir()
    flip(path, at, bit=1)


async def test_a_flipped_byte_in_front_of_a_replicas_floor_is_damage_and_no_torn_tail(tmp_path):
    master = await replicated(tmp_path)
    flip_log(tmp_path / "replica", 3 * SIZE + 70)
    replica = await open_replica(tmp_path / "replica")
    assert [(one.start, one.end) for one in replica.damages] == [(3 * SIZE, 4 * SIZE)]
    assert replica.replication.end == 6 * SIZE  # the sound frames behind it were acknowledged, and are kept
    await until(lambda: ("damaged", 0) in replica.hooks.told)
    replica.replication.confirm(replica.replication.end)
    await until(lambda: replica.log.confirmed == 3 * SIZE)  # the views wait in front of it
    await replica.replication.mend(3 * SIZE, await master.replication.read_log(3 * SIZE, 1, end=4 * SIZE))
    await until(lambda: replica.log.confirmed == 6 * SIZE)
    assert (replica.is_damaged, replica.error) == (False, None)
    assert log_bytes(tmp_path / "replica") == log_bytes(tmp_path / "master")
    await replica.close()
    await master.close()


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
async def test_a_replica_that_has_lost_its_end_is_damaged_until_its_master_has_sent_it_again(tmp_path, how):
    master = await replicated(tmp_path)
    if how == "flipped":
        flip_log(tmp_path / "replica", 5 * SIZE + 3)
    else:
        (path,) = (tmp_path / "replica" / "log").iterdir()
        path.write_bytes(path.read_bytes()[: 5 * SIZE + 7] if how == "cut" else b"")
    replica = await open_replica(tmp_path / "replica")
    lost = 0 if how == "gone" else 5 * SIZE
    assert (replica.replication.end, [(one.start, one.end) for one in replica.damages]) == (lost, [(lost, 6 * SIZE)])
    with pytest.raises(CorruptFrame, match="log's end"):
        await replica.replication.mend(lost, await master.replication.read_log(lost, 1 << 20))
    await feed(master, replica)
    assert not replica.is_damaged
    replica.replication.confirm(master.replication.end)
    await until(lambda: replica.log.confirmed == master.replication.end)
    assert len(await bodies(replica, 16)) == 6
    await replica.close()
    await master.close()


async def test_a_cut_at_the_masters_word_lowers_the_floor(tmp_path):
    master = await replicated(tmp_path)
    await master.close()
    replica = await open_replica(tmp_path / "replica", truncate_to=3 * SIZE)
    assert (replica.replication.end, replica.is_damaged) == (3 * SIZE, False)
    await replica.close()
    assert read_floor(OsFiles(), tmp_path / "replica" / "floor") == 3 * SIZE
    replica = await open_replica(tmp_path / "replica")
    assert not replica.is_damaged
    await replica.close()


async def test_a_cut_in_the_middle_of_damage_leaves_what_is_in_front_damaged(tmp_path):
    master = await replicated(tmp_path)
    await master.close()
    (path,) = (tmp_path / "replica" / "log").iterdir()
    data = path.read_bytes()
    path.write_bytes(data[: 3 * SIZE] + bytes(2 * SIZE) + data[5 * SIZE :])
    replica = await open_replica(tmp_path / "replica", truncate_to=4 * SIZE)
    assert (replica.replication.end, [(one.start, one.end) for one in replica.damages]) == (
        3 * SIZE,
        [(3 * SIZE, 4 * SIZE)],
    )
    await replica.close()


async def test_a_store_alone_that_has_lost_its_end_says_so_and_goes_on_behind_it(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        for n in range(6):
            await append(store, numbered(n))
    (path,) = (tmp_path / "log").iterdir()
    path.write_bytes(path.read_bytes()[: 4 * SIZE + 9])
    for _ in range(2):
        async with await LocalStore.open(tmp_path, cache_bytes_max=0) as store:
            assert [(one.start, one.end) for one in store.damages] == [(4 * SIZE, 6 * SIZE)]
            with pytest.raises(CorruptFrame):
                await store.queues.fetch(16, 4, max_bytes=1)
            at = (await store.queues.bounds(16)).next
            await append(store, numbered(at))
            assert await bodies(store, 16, 6) == [b"%050d" % n for n in range(6, at + 1)]


async def test_a_torn_tail_behind_the_floor_is_cut_as_ever(tmp_path):
    async with await LocalStore.open(tmp_path) as store:
        for n in range(3):
            await append(store, numbered(n))
    (path,) = (tmp_path / "log").iterdir()
    path.write_bytes(path.read_bytes() + b"torn")
    async with await LocalStore.open(tmp_path) as store:
        assert (store.replication.end, store.is_damaged) == (3 * SIZE, False)
        assert len(await bodies(store, 16)) == 3
