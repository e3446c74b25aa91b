"""Keys, values, cursors and addresses of a cluster: in its home group."""

from collections.abc import AsyncGenerator, Mapping, Sequence

from store.api.client import Changes, Delete, Entry, Namespace, Page, Put, Transacted
from store.cluster.groups import Groups
from store.format.frame import QueueNumber

__all__ = ["ClusterKeys"]


class ClusterKeys(Groups):
    """The keys, values and group offsets of a cluster, which are in its home group."""

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `StoreClient.kv_get`."""
        return await self._home.kv_get(key, namespace=namespace)

    async def kv_put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        namespace: str = "",
        ttl_ms: int | None = None,
        expires_at_ms: int | None = None,
    ) -> int:
        """See `StoreClient.kv_put`."""
        return await self._home.kv_put(
            key,
            value,
            expected_revision=expected_revision,
            namespace=namespace,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
        )

    async def kv_delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `StoreClient.kv_delete`."""
        return await self._home.kv_delete(key, expected_revision=expected_revision, namespace=namespace)

    async def kv_transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `StoreClient.kv_transact`."""
        return await self._home.kv_transact(compares, operations, namespace=namespace)

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """See `StoreClient.kv_prefix`."""
        return await self._home.kv_prefix(prefix, after=after, limit=limit, namespace=namespace)

    async def kv_range(
        self,
        start: str = "",
        end: str | None = None,
        *,
        namespace: str = "",
        after: str | None = None,
        limit: int = 1000,
        at_revision: int | None = None,
    ) -> Page:
        """See `StoreClient.kv_range`."""
        return await self._home.kv_range(
            start, end, namespace=namespace, after=after, limit=limit, at_revision=at_revision
        )

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `StoreClient.kv_count`."""
        return await self._home.kv_count(start, end, namespace=namespace)

    async def kv_hold(self) -> int:
        """See `StoreClient.kv_hold`."""
        return await self._home.kv_hold()

    def kv_release(self, revision: int) -> None:
        """See `StoreClient.kv_release`."""
        self._home.kv_release(revision)

    def kv_watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `StoreClient.kv_watch`."""
        return self._home.kv_watch(start, end, namespace=namespace, from_revision=from_revision)

    async def kv_namespaces(self) -> Sequence[Namespace]:
        """See `StoreClient.kv_namespaces`."""
        return await self._home.kv_namespaces()

    async def kv_limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """See `StoreClient.kv_limit`."""
        await self._home.kv_limit(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)

    # ---- groups

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `StoreClient.commit_offsets`."""
        await self._home.commit_offsets(group, offsets)

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `StoreClient.offsets`."""
        return await self._home.offsets(group)

    async def delete_group(self, group: str) -> None:
        """See `StoreClient.delete_group`. What it has settled is in every store group."""
        await self._all(lambda log: log.delete_group(group))
