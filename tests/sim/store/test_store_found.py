"""Defects that the simulated histories have found, each as a story of its own."""

import asyncio
import errno
import random
from contextlib import contextmanager
from pathlib import Path

import pytest

from store.base.errors import AppendOutcomeUnknown, StoreFailed
from store.local.local import LocalStore
from store.log.log import CommitLog
from tests.sim.store.faulty_files import Disk
from tests.support.store.store_kit import append, begin, bodies, frame

HOME = Path("/home")
SEEDS = range(20)


def disks():
    for seed in SEEDS:
        disk = Disk(random.Random(seed))
        disk.mount(HOME)
        yield disk


@contextmanager
def opened(disk):
    """Returns the log of a process that ends without a word."""
    log = CommitLog(disk, HOME / "log", segment_size_bytes=300)
    log.found = list(log.recover(0))
    disk.sync_directory(HOME)
    yield log


def put(log, *frames):
    placed = [log.place(one, epoch=1, stored_at_ms=7) for one in frames]
    log.flush()
    log.confirm(log.flushed)
    return placed


def test_a_segment_begun_by_a_process_that_was_killed_keeps_its_name():
    """The directory was not synced before the kill, and whoever went on with the segment did not sync it either."""
    for disk in disks():
        with opened(disk) as log:
            put(log, frame((16, b"x" * 200)))
            disk.fail("sync_directory", errno.EIO)
            with pytest.raises(OSError, match="directory"):
                log.place(frame((16, b"y" * 200)), epoch=1, stored_at_ms=7)
        with opened(disk) as log:
            acknowledged = put(log, frame((16, b"z" * 100)))
        disk.lose_power()
        with opened(disk) as log:
            assert log.end == acknowledged[-1].end


def test_what_a_failed_sync_dropped_is_written_when_it_is_read_again():
    """The page cache has what the disk has not, and the next sync knows nothing of it."""
    for disk in disks():
        with opened(disk) as log:
            put(log, frame((16, b"one")))
            log.place(frame((16, b"two")), epoch=1, stored_at_ms=7)
            disk.fail("sync", errno.EIO)
            with pytest.raises(OSError, match="Input/output"):
                log.flush()
        with opened(disk) as log:  # after a kill: from memory
            seen = log.found
            assert len(seen) == 2
        disk.lose_power()
        with opened(disk) as log:
            assert log.found == seen


def test_recovery_gives_nothing_to_the_views_before_it_is_on_disk():
    for disk in disks():
        with opened(disk) as log:
            put(log, frame((16, b"one")))
            log.place(frame((16, b"two")), epoch=1, stored_at_ms=7)
            log.write()
        log = CommitLog(disk, HOME / "log", segment_size_bytes=300)
        recovering = log.recover(0)
        seen = [next(recovering), next(recovering)]
        disk.lose_power()
        with opened(disk) as log:
            assert log.found == seen


def test_a_store_that_has_failed_is_opened_again_with_all_it_had_said(tmp_path):
    """Whatever the failed sync left on disk: what was acknowledged is there, what was not is whole or absent."""

    async def main(seed):
        home = tmp_path / str(seed)
        (home / "data").mkdir(parents=True)
        disk = Disk(random.Random(seed))
        disk.mount(home)
        store = await LocalStore.open(home / "data", files=disk, segment_size_bytes=1000)
        said = []
        for n in range(10):
            await append(store, frame((16, b"%d" % n)))
            said.append(b"%d" % n)
        disk.fail("sync", errno.EIO)
        found = await asyncio.gather(
            *(one for n in range(10, 20) for one in begin(store, frame((16, b"%d" % n)))), return_exceptions=True
        )
        later = await asyncio.gather(*begin(store, frame((16, b"later"))), return_exceptions=True)
        assert isinstance(later[0], StoreFailed | AppendOutcomeUnknown)
        assert all(isinstance(one, StoreFailed | AppendOutcomeUnknown) for one in found)
        await store.close()
        disk.lose_power()
        async with await LocalStore.open(home / "data", files=disk, segment_size_bytes=1000) as again:
            records = await bodies(again, 16)
            assert records == [b"%d" % n for n in range(len(records))]
            assert len(records) >= len(said)

    for seed in SEEDS:
        asyncio.run(main(seed))


def test_segments_of_deleted_queues_go_without_any_limits_and_with_them_what_addresses_had_last(tmp_path):
    """History 263240878: the history expected the newest record of an address to stay where nothing is limited."""

    async def main():
        async with await LocalStore.open(tmp_path, segment_size_bytes=1000) as store:
            for n in range(20):
                await append(store, frame((16, b"%d" % n, 7), (17, b"%d" % n, 8)))
            for n in range(20):
                await append(store, frame((17, b"%d" % n, 8)))
            await store.queues.delete(16)
            await trim(store)
            assert store.core.engine.log.first == 0  # queue 17 keeps them
            assert await store.log.last(7) is not None
            await store.queues.delete(17)
            await append(store, frame((17, b"kept", 8)))
            await trim(store)
        async with await LocalStore.open(tmp_path, segment_size_bytes=1000) as store:
            assert store.core.engine.log.first > 0
            assert await store.log.read(await store.log.last(7)) is None
            assert await store.log.read(await store.log.last(8)) == b"kept"
            assert await bodies(store, 17) == [b"kept"]

    async def trim(store):
        await store.core.until_dispatched(store.log.confirmed)
        await asyncio.to_thread(store.core.engine.trimmer.run)

    asyncio.run(main())
