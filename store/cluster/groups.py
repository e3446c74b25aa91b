"""The consumer groups of a cluster: where they are is in the home group."""

from store.cluster.store_groups import StoreGroups


class ClusterGroups:
    """`GroupCalls` of all groups: the home group's `commit` and `offsets`."""

    def __init__(self, stores: StoreGroups) -> None:
        self._stores = stores
        home = stores.home.groups
        self.commit, self.offsets = home.commit, home.offsets

    async def delete(self, group: str) -> None:
        """See `GroupCalls.delete`. What it has settled is in every store group."""
        await self._stores.all(lambda store: store.groups.delete(group))
