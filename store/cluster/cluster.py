"""All store groups of a cluster as one `StoreClient`.

A call that names a queue goes to the group in which the queue lies; keys and values, group offsets and addresses are in
the home group; a search without a queue covers all groups. Calls on one log (`scan`, `read`) go to the log that their
position is in. Groups come and go as the controller says.

Orders across groups mean nothing: merged results are ordered by position, so pages continue where they ended, and
"newest first" holds within each group.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from controller.api.client import ControllerClient, Group, Replica
from store.api.client import StoreClient
from store.base.closing import AsyncClosing
from store.cluster.groups import ClusterGroups
from store.cluster.leases import ClusterLeases
from store.cluster.log import ClusterLog
from store.cluster.queues import ClusterQueues
from store.cluster.store_groups import Connect, StoreGroups
from store.cluster.timers import ClusterTimers
from store.remoting import NearStore, RemoteStore


def connect_remote(controller: ControllerClient, *, zone: str | None = None, **options: Any) -> Connect:
    """Makes the clients of groups: over the network to the master that the controller names.

    With `zone` reads are answered by a replica in that zone that is in sync, if there is one. Options are those of
    `RemoteStore`.
    """

    def connect(number: int) -> StoreClient:
        def master() -> str | None:
            group = controller.group(number)
            replica = None if group is None or group.master is None else group.replica(group.master)
            return (replica.address or None) if replica is not None else None

        def near() -> str | None:
            group = controller.group(number)
            found = None if group is None else _near(group, zone)
            return (found.address or None) if found is not None else None

        def cluster() -> str:
            return controller.cluster

        if zone is None:
            return RemoteStore(number, master, cluster=cluster, **options)
        return NearStore(number, master, near=near, cluster=cluster, **options)

    return connect


def _near(group: Group, zone: str | None) -> Replica | None:
    """Returns a replica in a zone that is in sync; None: the master is there itself, or no such replica is."""
    there = [one for one in group.replicas if one.zone == zone and one.id in group.sync_set]
    if any(one.id == group.master for one in there):
        return None
    return there[0] if there else None


class ClusterStore(AsyncClosing):
    """A `StoreClient` of all groups. `async with await ClusterStore.open(controller, connect) as store: ...`

    `connect` makes the client of a group, as `connect_remote` does; the clients that it returns are closed here. The
    controller's cache says which groups there are, and is watched.
    """

    def __init__(self, controller: ControllerClient, connect: Connect) -> None:
        """Begins to connect; the event loop has to be running."""
        self.store_groups = StoreGroups(controller, connect)
        self.log = ClusterLog(self.store_groups)
        self.queues = ClusterQueues(self.store_groups)  # type: ignore[abstract]  # the rest is routed
        self.keys = self.store_groups.home.keys
        self.groups = ClusterGroups(self.store_groups)
        self.leases = ClusterLeases(self.store_groups)  # type: ignore[abstract]  # the rest is routed
        self.timers = ClusterTimers(self.store_groups)

    @classmethod
    async def open(cls, controller: ControllerClient, connect: Connect) -> "ClusterStore":
        """Connects, and waits for the home group. Raises `StoreUnreachable`."""
        store = cls(controller, connect)
        try:
            home = store.store_groups.home
            if isinstance(home, RemoteStore):
                await home.connected()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        """Disconnects from all groups."""
        await self.store_groups.close()

    @property
    def group(self) -> int:
        """See `StoreClient.group`."""
        return self.store_groups.controller.home

    @property
    def logs(self) -> Mapping[int, StoreClient]:
        """See `StoreClient.logs`."""
        return MappingProxyType(self.store_groups.logs)

    @property
    def unreachable(self) -> Sequence[int]:
        """The groups to which no connection stands."""
        return self.store_groups.unreachable

    @property
    def reached(self) -> Mapping[int, StoreClient]:
        """The clients of the groups to which a connection stands."""
        gone = set(self.unreachable)
        return {number: log for number, log in self.logs.items() if number not in gone}

    @property
    def troubles(self) -> Mapping[int, str]:
        """Returns why groups refuse writes, as they said last; groups that take writes are left out."""
        return self.store_groups.troubles
