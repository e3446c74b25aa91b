"""The consumer groups of a cluster. The home group, a store group, keeps their offsets."""

from store.cluster.store_groups import StoreGroups


class ClusterGroups:
    """`GroupCalls` of the cluster: `commit` and `offsets` of the home group, `delete` in all store groups."""

    def __init__(self, stores: StoreGroups) -> None:
        self._stores = stores
        home = stores.home.groups
        self.commit, self.offsets = home.commit, home.offsets

    async def delete(self, group: str) -> None:
        """See `GroupCalls.delete`. Every store group has messages that the consumer group has settled."""
        await self._stores.all(lambda store: store.groups.delete(group))
