"""A disk that is full to the last byte: nothing is promised or served that is not saved, until there is room."""

import asyncio
import errno
import logging
from contextlib import suppress

import pytest

from controller.api.client import GroupConfig
from controller.api.requests import AskService
from store.base.errors import StoreFull
from store.node import node as node_module
from store.node import replica_role
from store.node.replacing import log_no_room
from store.node.replica.disk import Disk
from store.replication.epoch_file import EpochFile
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, PATIENCE_S, StoreGroup
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(replica_role, "AGAIN_S", 0.1)
    monkeypatch.setattr(node_module, "REOPEN_S", 0.1)


def disks(tmp_path, controllers, **options):
    """Returns a group, and the files of its nodes by name."""
    group = StoreGroup(tmp_path, controllers, **options)
    files = {name: FaultyFiles() for name in group.names}
    group.own = {name: {"files": files[name]} for name in group.names}
    return group, files


def kept(group, name):
    """Returns the newest epoch that a node's directory holds."""
    return EpochFile(FaultyFiles(), group.directory / name).load()[1]


@pytest.mark.slow
async def test_an_epoch_that_cannot_be_saved_is_not_promised_until_it_can(tmp_path, controllers):
    group, files = disks(tmp_path, controllers, count=3)
    async with group:
        await group.in_sync()
        await append(group.store(), frame((16, b"a")))
        await group.settled()
        old, before = await group.master(), group.group.master_epoch
        full, heir = (name for name in group.names if name != old)
        files[full].fill(0)
        await group.hand_over(heir)
        registry, node = controllers.nodes[1].registry, group.nodes[full]
        await until(lambda: registry.last(GROUP, group.id(full)).full, PATIENCE_S)
        await append(group.store(), frame((16, b"b")))  # the others go on
        assert node.disk.promised == kept(group, full) == before
        assert registry.last(GROUP, group.id(full)).master_epoch == before
        assert not node.failed.done()
        files[full].write_error = 0
        await group.in_sync()
        await group.settled()
        assert node.disk.promised == kept(group, full) == group.group.master_epoch
        assert await bodies(node.disk.store, 16) == [b"a", b"b"]
        await until(lambda: not registry.last(GROUP, group.id(full)).full, PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
async def test_who_is_elected_without_room_serves_when_there_is_some(tmp_path, controllers, error):
    config = GroupConfig(replicas=2, min_in_sync=1)
    group, files = disks(tmp_path, controllers, count=2, config=config)
    async with group:
        await group.in_sync()
        await append(group.store(), frame((16, b"a")))
        await group.settled()
        old, before = await group.master(), group.group.master_epoch
        full = next(name for name in group.names if name != old)
        node = group.nodes[full]
        files[full].fill(0)
        files[full].write_error = error
        await group.kill(old)
        await until(lambda: group.group.master == group.id(full) and node.disk.full, PATIENCE_S)
        assert group.group.master_epoch > before
        assert node.disk.promised == kept(group, full) == before
        assert not (await group.client.do(AskService(group=GROUP))).served
        files[full].write_error = 0
        assert await group.master(after=before) == full
        await append(group.store(), frame((16, b"b")))
        assert not node.failed.done()


async def test_any_other_error_is_a_failure(tmp_path):
    files = FaultyFiles()
    disk = Disk(tmp_path, GROUP, {"files": files})
    await disk.open_replica()
    files.fill(0)
    files.write_error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        await disk.save(disk.epochs, 5)
    assert (disk.promised, disk.full) == (0, False)
    await disk.close()


async def test_a_full_disk_is_full_while_the_store_is_opened_again(tmp_path):
    """A replica without room opens its store again and again; it reported room while that was closed."""
    files = FaultyFiles()
    files.free = 1_000
    disk = Disk(tmp_path, GROUP, {"files": files, "disk_reserve_bytes": 1 << 20})
    await disk.open_replica()
    for _ in range(2):
        assert (disk.full, disk.low) == (True, True)
        await disk.close()
        assert (disk.full, disk.low) == (True, True)
        opening = asyncio.ensure_future(disk.open_replica())
        await asyncio.sleep(0)
        assert (disk.full, disk.low) == (True, True)
        await opening
    await disk.close()
    files.free = None
    await disk.open_replica()
    assert (disk.full, disk.low) == (False, False)
    await disk.close()


async def test_a_store_that_could_not_be_opened_for_want_of_room_is_full_until_it_is_opened(tmp_path):
    files = FaultyFiles()
    disk = Disk(tmp_path, GROUP, {"files": files})
    files.fill(0)
    with pytest.raises(StoreFull):
        await disk.open_replica()
    assert disk.full
    opening = asyncio.ensure_future(disk.open_replica())
    await asyncio.sleep(0)
    assert disk.full
    files.write_error = 0
    with suppress(StoreFull):  # it had begun before
        await opening
    if disk.store is None:
        await disk.open_replica()
    assert not disk.full
    await disk.close()


async def test_a_full_disk_is_logged_once_however_often_the_store_is_opened(tmp_path, caplog):
    """A replica without room opens its store each second, and logged three lines each time."""
    files = FaultyFiles()
    disk = Disk(tmp_path, GROUP, {"files": files, "disk_reserve_bytes": 1_000})

    def logged(text):
        return sum(text in line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING)

    for free, full, ended in ((900, 1, 0), (9_000, 1, 1), (900, 2, 1)):
        files.free = free
        for _ in range(3):
            await disk.open_replica()
            await disk.close()
        assert (logged("writing is refused until"), logged("the disk has room again")) == (full, ended)
    assert logged("the disk has little room") == 2
    assert logged("the scrub's position") == 0
    log_no_room(StoreFull("900 bytes"), again=True)
    assert logged("frames from the master") == 0
    log_no_room(StoreFull("900 bytes"), again=False)
    assert logged("frames from the master") == 1
