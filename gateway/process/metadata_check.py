"""Compares the metadata of a node that is alone with the queues that have records in its log.

A directory of metadata that is lost, or is an older copy, gives numbers of queues again. The records under such a
number are another topic's. There are no other controllers to find that out by.
"""

import logging
from pathlib import Path

from controller.api.client import ControllerClient
from gateway.config.config import Config
from store.base.errors import ForeignCluster, MetadataWentBack, ViewsDamaged
from store.local.local import LocalStore
from store.node.replica.identity import kept_identity

logger = logging.getLogger(__name__)


def check_alone(config: Config, directory: Path) -> None:
    """Checks that a data directory is no store node's, before anything is written to its log: other nodes have it, too.

    `directory` is that of the metadata. A node with workers is a replica, too, has metadata, and names no controllers.

    Raises `ForeignCluster`, OSError.
    """
    data_dir, with_metadata = config.store.data_dir, directory.exists()
    if not data_dir.is_dir() or (with_metadata and not config.cluster.controllers):
        return
    if (found := kept_identity(data_dir)) is None:
        return
    store_node = (
        f"{data_dir} is of replica {found.id} of store group {found.group} of cluster {found.cluster}: start headgate "
        "store on it. If it is of a node with workers, "
    )
    if with_metadata:
        raise ForeignCluster(f"{store_node}take cluster.controllers out of its configuration")
    raise ForeignCluster(
        f"{store_node}its metadata in {directory} is lost: put the newest copy in its place, or, where there is none, "
        f"remove the files replica, replica.copy and replica.asked of {data_dir}, as far as they are there"
    )


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
