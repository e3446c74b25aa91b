"""Replacing what a replica has: by a snapshot of the master, or by less, where the group has given up the rest."""

import logging

from store.format.frame import LogOffset
from store.node.place import Place
from store.node.snapshots import install_fetched
from store.replication.effects import GivenUp

__all__ = ["give_up", "install"]

logger = logging.getLogger(__name__)


async def install(place: Place, given_up: GivenUp | None = None) -> None:
    """Put the snapshot that was fetched in the place of log and views, and open that. Raises `StoreError`, OSError.

    `given_up`: what the log has lost from there on is not the group's any more.
    """
    store = place.disk.store
    lost_end = None if store is None else store.lost_end  # a member of the set may have confirmed what it has lost
    if lost_end is not None and given_up is not None:
        logger.critical(
            "the log is given up from %d to %d, as an unclean election was accepted: what it held is LOST",
            given_up.at,
            lost_end,
        )
        lost_end = min(lost_end, given_up.at)
    await place.disk.close()
    with place.disk.needing_room("a snapshot is"):
        await install_fetched(place, lost_end)
    await place.disk.open_slave()
    if given_up is not None:
        await place.disk.follow_unclean(given_up.unclean)


async def give_up(place: Place, at: LogOffset, unclean_epoch: int, *, cut_to: LogOffset | None = None) -> None:
    """Give up what the log has lost from a log offset on, for the unclean election of an epoch. The store is open then.

    Killed in between, it is done again: the election counts as followed when all else is on disk. Raises
    `NotRebuildable`, other `StoreError`, OSError.
    """
    await place.disk.close()
    await place.disk.open_slave(cut_to, give_up_from=at)
    await place.disk.follow_unclean(unclean_epoch)
