"""Replacing a replica's contents: by a snapshot of the master, or by less, where the group has given up the rest."""

import logging

from store.base.errors import SnapshotUnusable
from store.format.frame import LogOffset
from store.node.replica.context import ReplicaContext
from store.node.snapshots import install_fetched
from store.replication.replica_core import ReplicaCore, Stage

logger = logging.getLogger(__name__)

START_OVER_AGAIN_MS = 30_000  # from one attempt to the next: for each the master may copy all of its views


def start_over(context: ReplicaContext, core: ReplicaCore) -> None:
    """Asks for a snapshot of the master in place of damaged views that the log cannot rebuild, if it is time."""
    store, now_ms = context.disk.store, context.now_ms()
    if store is None or not store.view_damages or store.views_rebuildable or now_ms < context.start_over_ms:
        return
    if core.start_over():
        context.start_over_ms = now_ms + START_OVER_AGAIN_MS
        logger.error(
            "a snapshot of the master is asked for: the views of this replica are damaged (%s), and its "
            "log, from %d to %d, does not have all the records that they are made from",
            store.view_damages[0],
            store.replication.first,
            store.replication.end,
        )


def why_diverged(core: ReplicaCore) -> str:
    """Returns why a replica follows no master any more, with the remedy; "" for one that may follow."""
    if core.stage is not Stage.DIVERGED:
        return ""
    return (
        f"the group lacks frames that this replica has as confirmed, from {core.diverged_at} to {core.confirmed}, and "
        "it follows no master any more: stop it, copy what is needed by headgate store dump, and start it on an empty "
        "directory"
    )


def log_stop(core: ReplicaCore, why: str) -> None:
    """Logs why a stream to a master ends: as an error where no other one follows."""
    if diverged := why_diverged(core):
        logger.error("%s", diverged)
    else:
        logger.info("this replica stops following the master: %s", why)


def log_no_room(error: Exception, *, again: bool) -> None:
    """Logs that frames cannot be stored. `again`: the disk was full already when the role began, which is logged."""
    level = logging.DEBUG if again else logging.WARNING
    logger.log(level, "frames from the master cannot be stored for now: %s", error)


async def install(context: ReplicaContext, core: ReplicaCore) -> None:
    """Replaces log and views by the snapshot that was fetched, and opens that. Raises `StoreError`, OSError."""
    store, given_up = context.disk.store, core.given_up
    lost_end = None if store is None else store.replication.lost_end
    if store is not None and core.starting_over:  # or have acknowledged frames that it throws away
        lost_end = max(store.replication.held, store.replication.followed, store.replication.end)
        logger.error(
            "this replica discards its log, from %d to %d, and starts over from the snapshot: it is not elected "
            "before its log reaches %d again",
            store.replication.first,
            store.replication.end,
            lost_end,
        )
    if store is not None and core.diverged_at is not None and given_up is None:
        logger.critical(
            "this replica discards confirmed frames that the group lacks since an unclean election, from %d to %d: "
            "their records are LOST",
            core.diverged_at,
            store.replication.end,
        )
    if lost_end is not None:  # also of a log that is discarded: the master never had the rest
        lost_end = min(lost_end, core.reach)
    if lost_end is not None and given_up is not None:
        logger.critical(
            "the log is given up from %d to %d, as an unclean election was accepted: its records are LOST",
            given_up.at,
            lost_end,
        )
        lost_end = min(lost_end, given_up.at)
    await context.disk.close()
    try:
        with context.disk.needing_room("a snapshot is"):
            await install_fetched(context, lost_end)
    except SnapshotUnusable as error:
        if not core.starting_over:
            raise
        logger.error("this replica keeps its log, as the snapshot that came is of no use: %s", error)
    await context.disk.open_replica()
    if given_up is not None:
        await context.disk.follow_unclean(given_up.unclean)


async def give_up(
    context: ReplicaContext, at: LogOffset, unclean_epoch: int, *, cut_to: LogOffset | None = None
) -> None:
    """Gives up the lost end of the log from an offset on, for the unclean election of an epoch. The store is open then.

    Killed in between, it is done again: the election counts as followed when all else is on disk. Raises
    `NotRebuildable`, other `StoreError`, OSError.
    """
    await context.disk.close()
    await context.disk.open_replica(cut_to, give_up_from=at)
    await context.disk.follow_unclean(unclean_epoch)
