"""The steps of a replica between its election and its time as master."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from controller.api.client import ControllerError, Group
from controller.api.requests import Elect
from store.format.ranges import RangeSet
from store.integrity.ledger import Damage
from store.local.local import LocalStore
from store.node.replica.context import TICK_S, ReplicaContext

logger = logging.getLogger(__name__)

ELECT_AGAIN_S = 1.0  # between two requests to be elected
UNCLEAN_REPAIR_MS = 5_000  # that a repair may take, where an unclean election has accepted a loss


async def group_to_lead(context: ReplicaContext) -> Group | None:
    """Lets the log be the group's, and returns the newest group, in whose epoch this replica is to be the master.

    Returns None when it is not to be any more: every change of the master is a new epoch, and one that came while this
    waited for the disk may be another replica's. Raises `ForeignLog`, `StoreFull`, OSError.
    """
    group, disk = context.known(), context.disk
    if group.master != context.replica or group.master_epoch <= disk.epochs.newest:
        return None
    await disk.belong(group.log)
    await disk.follow_unclean(group.unclean_epoch)
    newest = context.known()
    return newest if newest.master_epoch == group.master_epoch else None


async def ask_election(context: ReplicaContext, epoch: int) -> None:
    """Asks to be elected anew, as the promises that it gave to clients as master of this epoch are not known any more.

    Asks again and again: the controllers' leader may be new itself, and not know this replica yet.
    """
    while (group := context.known()).master == context.replica and group.master_epoch == epoch:
        ask = Elect(group=context.group, candidate=context.replica, master_epoch=epoch, sync_epoch=group.sync_epoch)
        with suppress(ControllerError):
            context.on_group(await context.controller.do(ask))
        await asyncio.sleep(ELECT_AGAIN_S)


async def sound_to_lead(context: ReplicaContext, failed: Callable[[], bool]) -> bool:
    """Reads the part of the log that the views have not followed, and waits until its damage is repaired.

    A master assigns positions, and knows producers, by all of its log: it cannot restore frames later that it has
    skipped. A range that no replica has is lost, and is not waited for. Returns False when this replica is not elected
    any more, or its disk has `failed`. Raises `StoreError`, OSError.
    """
    store = context.disk.store
    assert store is not None
    began_ms, told = context.now_ms(), list[int]()
    await store.replication.verify_unfollowed()
    while True:
        found = _unfollowed(store)
        missing = [one for one in found if not context.disk.lost(one.start)]
        if not missing:
            break
        context.repairing.look()
        group = context.known()
        if group.master != context.replica or failed():
            return False
        unclean = group.unclean_epoch > context.disk.epochs.newest  # also where it was elected again since then
        if unclean and context.now_ms() - began_ms >= UNCLEAN_REPAIR_MS:
            _log_accepted(missing)
            break
        awaited = sorted(frozenset[int]().union(*(context.repairing.awaited(one.start) for one in missing)))
        if awaited != told:
            told = awaited
            if awaited:
                _log_waiting(group, missing, awaited)
        await asyncio.sleep(TICK_S)
    context.disk.passed = RangeSet((one.start, one.end) for one in found)
    return True


def _unfollowed(store: LocalStore) -> Sequence[Damage]:
    """Returns the known damages that the views have not followed yet."""
    start, end = store.replication.followed, store.replication.mendable_end
    return [one for one in store.damages if one.start < end and start < one.end]


def _log_waiting(group: Group, missing: Sequence[Damage], awaited: Sequence[int]) -> None:
    """Logs the ranges to be repaired, the replicas that the repair waits for, and a remedy."""
    first = f"the log from {missing[0].start} to {missing[0].end}"
    ranges = first if len(missing) == 1 else f"{first} and {len(missing) - 1} more ranges"
    logger.error(
        "elected in epoch %d, this replica repairs its log before it becomes master: it waits for %s to repair %s, "
        "which its views have not followed yet: start those that are down, and retire those that are gone for good "
        "(headgate cluster replicas retire %d REPLICA)",
        group.master_epoch,
        " and ".join(f"replica {one}" for one in awaited),
        ranges,
        group.number,
    )


def _log_accepted(missing: Sequence[Damage]) -> None:
    """Logs the loss that an unclean election has accepted."""
    for one in missing:
        logger.critical(
            "the log is damaged from %d to %d, and no live replica repairs it, as an unclean election was accepted: "
            "its records are LOST",
            one.start,
            one.end,
        )
