"""Snapshots of the views from one node to another: taken at the master, sent in parts with checksums, put together.

A transfer that is cut short begins again from its beginning, with views that are newer by then. One snapshot is taken
and sent at a time: the copy takes room on the master's disk.
"""

import asyncio
import logging
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

from google_crc32c import value

from store.base.errors import SnapshotUnusable, StoreOverloaded
from store.base.streams import Stream, opened
from store.disk.files import OsFiles, write_whole
from store.engine.snapshot import (
    SNAPSHOT_FETCHED,
    SNAPSHOT_SENT,
    SNAPSHOT_VIEWS,
    SnapshotInfo,
    describe_snapshot,
    install_snapshot,
)
from store.format.frame import LogOffset
from store.local.local import LocalStore
from store.node.replica.context import ReplicaContext
from store.replication.epoch_file import EpochFile
from store.replication.epochs import EpochList
from store.replication.errors import BadEpochs, BadMessage
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import SnapshotHead, SnapshotPart, SnapshotRequest

logger = logging.getLogger(__name__)

SILENCE_S = 30.0  # a master that sends nothing for so long is given up; taking the snapshot needs a moment
TAKING_S = 660.0  # until the head comes: as long as taking one may need, and some


class SnapshotSender:
    """The master's side."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / SNAPSHOT_SENT
        self._busy = False

    async def send(self, store: LocalStore, epochs: EpochList, asked: SnapshotRequest, context: Any) -> None:
        """Takes a snapshot and sends it; `epochs` are those of the log. Raises `StoreError`, OSError."""
        if asked.starts_over and store.is_damaged:
            raise SnapshotUnusable("the master's log is damaged too: no replica discards its log for a snapshot of it")
        if self._busy:
            raise StoreOverloaded("a snapshot is being sent already")
        self._busy = True
        try:
            await asyncio.to_thread(shutil.rmtree, self._directory, True)
            info = await store.replication.snapshot(self._directory)
            first = LogOffset(info.first)
            kept = epochs.cut(first).trim(first).entries
            sound = not store.is_damaged
            head = SnapshotHead(asked.epoch, info.group, first, info.dispatched, info.size_bytes, kept, sound)
            await context.write(wire.encode(head))
            with closing(OsFiles().open(self._directory / SNAPSHOT_VIEWS)) as file:
                for at in range(0, info.size_bytes, wire.PART_BYTES):
                    data = await asyncio.to_thread(file.pread, min(wire.PART_BYTES, info.size_bytes - at), at)
                    await context.write(wire.encode(SnapshotPart(at, data, value(data))))
        finally:
            removing = asyncio.ensure_future(asyncio.to_thread(shutil.rmtree, self._directory, True))
            removing.add_done_callback(self._removed)
            await asyncio.shield(removing)

    def _removed(self, _done: object) -> None:
        """Lets the next one begin, whose files the removal would have taken."""
        self._busy = False


async def fetch_snapshot(context: ReplicaContext, address: str, epoch: int, *, starts_over: bool = False) -> None:
    """Gets the views of the master of an epoch, whole, into a directory beside the log.

    `starts_over`: only from a master without known damage. Raises `StoreError`, OSError; nothing is left then.
    """
    directory = context.disk.data_dir / SNAPSHOT_FETCHED
    await asyncio.to_thread(_begin, directory)
    try:
        await _fetch(context, address, epoch, directory, starts_over=starts_over)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True))
        raise


async def _fetch(context: ReplicaContext, address: str, epoch: int, directory: Path, *, starts_over: bool) -> None:
    async with opened(context.dial(address)) as channel:
        request = wire.encode(SnapshotRequest(context.group, context.replica, epoch, starts_over))
        call = channel.unary_stream(wire.path(wire.SNAPSHOT))(request)
        stream = Stream(call, wire.ERRORS, f"the master at {address}")
        head = wire.decode(await _timely(stream, TAKING_S), SnapshotHead)
        _check(head, context, epoch)
        if starts_over and not head.sound:
            raise SnapshotUnusable("the master does not confirm that its log is sound: this replica keeps its own log")
        if 0 <= (free := OsFiles().free_bytes(directory)) < head.size_bytes:
            raise SnapshotUnusable(f"it has {head.size_bytes} bytes, and {free} are free on the disk of {directory}")
        with closing(OsFiles().open(directory / SNAPSHOT_VIEWS, create=True)) as file:
            at = 0
            while at < head.size_bytes:
                part = wire.decode(await _timely(stream, SILENCE_S), SnapshotPart)
                if part.at != at or at + len(part.data) > head.size_bytes or value(part.data) != part.crc32c:
                    raise BadMessage(f"a part begins at {part.at}, not at {at}")
                await asyncio.to_thread(write_whole, file, part.data, at)
                at += len(part.data)
            await asyncio.to_thread(file.sync)
        epochs = EpochList.of(head.epochs)
        await asyncio.to_thread(EpochFile(OsFiles(), directory).save, epochs, max(epoch, context.disk.promised))
        info = SnapshotInfo(group=head.group, first=head.first, dispatched=head.dispatched, size_bytes=head.size_bytes)
        await asyncio.to_thread(describe_snapshot, directory, info)  # last: it makes it a snapshot
        logger.info("a snapshot was fetched", extra={"bytes": at, "dispatched": head.dispatched, "from": address})


def _begin(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    OsFiles().make_directory(directory)


def _check(head: SnapshotHead, context: ReplicaContext, epoch: int) -> None:
    if head.group != context.group or head.epoch != epoch:
        raise SnapshotUnusable(f"store group {head.group}, epoch {head.epoch}: not the snapshot that was asked for")
    try:
        EpochList.of(head.epochs)
    except BadEpochs as error:
        raise SnapshotUnusable(str(error)) from error


async def _timely(stream: Stream, timeout_s: float) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            return await stream.read()
    except TimeoutError as error:
        raise SnapshotUnusable(f"nothing has come for {timeout_s:g} s") from error


async def install_fetched(context: ReplicaContext, lost_end: LogOffset | None) -> None:
    """Installs the fetched snapshot in the data directory, with the epochs promised since and the log's lost end.

    Raises `StoreError`, OSError.
    """
    directory = context.disk.data_dir / SNAPSHOT_FETCHED
    file = EpochFile(OsFiles(), directory)
    found = await asyncio.to_thread(file.load)
    assert found is not None
    await context.disk.saved()
    saves = context.disk.epoch_saves  # an older list that comes back must not count as newer
    await asyncio.to_thread(file.save, found[0], max(found[1], context.disk.promised), beyond=saves)
    await asyncio.to_thread(install_snapshot, context.disk.data_dir, directory, lost_end=lost_end)
