"""Replicas whose store cannot be opened, because of damage that their log does not make good.

Such a replica is registered, says that it is damaged, and takes no part. Its data directory stays as it is until a
whole snapshot of a sound master is beside it; then that takes its place.
"""

import asyncio
import logging
from pathlib import Path

from controller.api.client import Group
from store.base.errors import ForeignLog, NotRebuildable, StoreError, StoreUnreachable
from store.disk.files import Files
from store.engine.identity import log_id
from store.format.frame import Frame, LogOffset, origin_of
from store.integrity.floor import FLOOR_FILE, read_floor
from store.integrity.views import ViewsHealth
from store.log.log import CommitLog
from store.log.segment import segment_start
from store.node.replacing import START_OVER_AGAIN_MS
from store.node.replica.context import ReplicaContext
from store.node.replica.disk import Disk
from store.node.snapshots import fetch_snapshot, install_fetched
from store.views.layout import read_marks

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks for a master
UNREACHABLE_MS = 5_000  # until a master that did not answer, or refused, is asked again


def check_not_last(disk: Disk, group: Group | None) -> None:
    """Promises the group's epoch, where the store cannot be opened and the promised epoch is perhaps unknown.

    So heartbeats with an older one, which knew of no damage, do not count any more. It need not be kept: nothing is
    taken from any master but the newest. Raises `NotRebuildable`: no other replica of the group has a copy.
    """
    if disk.unusable is None or group is None:
        return
    disk.promised = max(disk.promised, group.master_epoch)
    if len(group.replicas) < 2:
        raise NotRebuildable(
            f"{disk.unusable}. This is the only replica of store group {group.number}: put a copy of {disk.data_dir} "
            "(store.data_dir) in its place; where there is none, accept the loss with an empty directory"
        ) from disk.unusable


async def open_or_start_over(context: ReplicaContext) -> bool:
    """Opens the store, or if damage forbids that, starts over from a master. Returns False if neither is possible yet.

    Raises `StoreError`, OSError.
    """
    disk = context.disk
    if disk.unusable is None:
        await disk.open_usable()
    if disk.unusable is None:
        return True
    context.repairing.look()
    group = context.known()
    check_not_last(disk, group)
    address, now_ms = context.address_of_master(group), context.now_ms()
    if address is None or group.master not in group.sync_set or now_ms < context.start_over_ms:
        await asyncio.sleep(LOOK_S)
        return False
    context.start_over_ms = now_ms + START_OVER_AGAIN_MS
    await _check_log(disk, group.log)
    logger.error("this replica starts over from a snapshot of the master: %s", disk.unusable)
    lost_end = await asyncio.to_thread(held_by, disk.files, disk.data_dir, disk.group)
    try:
        await fetch_snapshot(context, address, group.master_epoch, starts_over=True)
        with disk.needing_room("a snapshot is"):
            await install_fetched(context, lost_end)
    except (StoreError, OSError) as error:
        logger.error("this replica cannot start over for now, and keeps its log: %s", error)
        if isinstance(error, StoreUnreachable):  # so nothing was copied for it, or not all
            context.start_over_ms = now_ms + UNREACHABLE_MS
        return False
    await disk.open_replica()
    return True


async def _check_log(disk: Disk, log: str) -> None:
    """Raises `ForeignLog`: the directory's log is not the group's."""
    known = await asyncio.to_thread(log_id, disk.files, disk.data_dir)
    if log and known not in {"", log}:
        raise ForeignLog(f"{disk.data_dir} has log {known}, and that of store group {disk.group} is {log}")


def held_by(files: Files, data_dir: Path, group: int) -> LogOffset:
    """Returns the log offset up to which a data directory that is not open once had all of its log.

    Its floor, its views and the sound frames of its newest file tell; the greatest counts. Raises OSError.
    """
    origin, held = origin_of(group), read_floor(files, data_dir / FLOOR_FILE)
    if not ViewsHealth(data_dir).may_crash and (marks := read_marks(data_dir / "views")) is not None:
        held = max(held, marks.dispatched)
    directory = data_dir / "log"
    if directory.is_dir() and any(segment_start(name) is not None for name in files.names(directory)):
        log = CommitLog(files, directory, begin=origin)
        try:
            ends = [one.end for one in log.scan(log.sealed, log.end) if isinstance(one, Frame)]
            held = max([held, log.sealed, *ends])
        finally:
            log.close()
    return held if origin <= held < origin_of(group + 1) else origin
