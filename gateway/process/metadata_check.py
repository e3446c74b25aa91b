"""Compares the metadata of a node that is alone with the queues that have records in its log.

A directory of metadata that is lost, or is an older copy, gives numbers of queues again. The records under such a
number are another topic's. There are no other controllers to find that out by.
"""

import logging
from pathlib import Path

from controller.api.client import ControllerClient
from store.base.errors import MetadataWentBack, ViewsDamaged
from store.local.local import LocalStore

logger = logging.getLogger(__name__)


async def check_metadata(store: LocalStore, controller: ControllerClient, directory: Path) -> None:
    """Checks that the metadata has given the numbers of all queues with records. Raises `MetadataWentBack`."""
    try:
        newest = await store.queues.newest()
    except ViewsDamaged as error:  # made anew soon, and compared then
        logger.warning("the queues with records are not known yet: %s", error)
        return
    following = controller.known().next_queue
    if newest >= following:
        raise MetadataWentBack(
            f"the metadata in {directory} is older than the log: queue {newest} has records, and {following} is the "
            "next number for a queue, so another topic would get these records. Put the newest copy of the directory "
            f"in its place; where there is none, run headgate controller recover --dir {directory}: topics that it "
            "does not know are made anew, and the records that they had are read no more"
        )
