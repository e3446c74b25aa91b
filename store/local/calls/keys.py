"""Keys and values, and where groups are."""

from collections.abc import AsyncGenerator, Mapping, Sequence

from store.api.client import Changes, Delete, Entry, Namespace, Page, Put, Transacted
from store.format.frame import QueueNumber
from store.format.records import GroupDeleted, GroupOffsets
from store.local.calls.core import Calls
from store.local.kv.keyvalue import KeyValue
from store.views.kv import check_key

__all__ = ["KeyCalls"]


class KeyCalls(Calls):
    """Keys, values and cursors."""

    _kv: KeyValue

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `StoreClient.kv_get`."""
        return await self._kv.get(key, namespace)

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
        """See `StoreClient.kv_put`. Raises `RevisionConflict`, `KeyTooLong`, `FrameTooLarge`, `NamespaceFull`."""
        return await self._kv.put(
            key,
            value,
            expected_revision=expected_revision,
            namespace=namespace,
            ttl_ms=ttl_ms,
            expires_at_ms=expires_at_ms,
        )

    async def kv_delete(self, key: str, *, expected_revision: int | None = None, namespace: str = "") -> bool:
        """See `StoreClient.kv_delete`. Raises `RevisionConflict`, `KeyTooLong`."""
        return await self._kv.delete(key, expected_revision=expected_revision, namespace=namespace)

    async def kv_transact(
        self, compares: Mapping[str, int], operations: Sequence[Put | Delete], *, namespace: str = ""
    ) -> Transacted:
        """See `StoreClient.kv_transact`."""
        return await self._kv.transact(compares, operations, namespace)

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """See `StoreClient.kv_prefix`."""
        return await self._kv.prefix(prefix, after=after, limit=limit, namespace=namespace)

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
        return await self._kv.range(start, end, namespace=namespace, after=after, limit=limit, at_revision=at_revision)

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `StoreClient.kv_count`."""
        return await self._kv.count(start, end, namespace)

    async def kv_hold(self) -> int:
        """See `StoreClient.kv_hold`."""
        return await self._kv.hold()

    def kv_release(self, revision: int) -> None:
        """See `StoreClient.kv_release`."""
        self._kv.release(revision)

    def kv_watch(
        self, start: str = "", end: str | None = None, *, namespace: str = "", from_revision: int | None = None
    ) -> AsyncGenerator[Changes, None]:
        """See `StoreClient.kv_watch`."""
        return self._kv.watch(start, end, namespace=namespace, from_revision=from_revision)

    async def kv_namespaces(self) -> Sequence[Namespace]:
        """See `StoreClient.kv_namespaces`."""
        return await self._kv.namespaces()

    async def kv_limit(self, namespace: str, *, keys_max: int = 0, size_bytes_max: int = 0) -> None:
        """See `StoreClient.kv_limit`."""
        await self._kv.limit(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)

    # ---- groups

    async def commit_offsets(self, group: str, offsets: Mapping[QueueNumber, int]) -> None:
        """See `StoreClient.commit_offsets`. Raises `KeyTooLong`, and ValueError for an offset beyond 63 bits."""
        if any(abs(at) >> 63 for at in offsets.values()):
            raise ValueError(f"an offset of group {group!r} has more than 63 bits")
        await self._recorder.record(GroupOffsets(check_key(group), {int(queue): at for queue, at in offsets.items()}))

    async def offsets(self, group: str) -> Mapping[QueueNumber, int]:
        """See `StoreClient.offsets`."""
        self._check_open()
        change = self._recent.group(check_key(group))
        if change is not None and change.cleared:
            return dict(change.offsets)

        def stored() -> dict[QueueNumber, int]:
            with self._engine.views.reading() as txn:
                return self._engine.views.groups.get(txn, group)

        found = await self._blocking(stored)
        return {**found, **change.offsets} if change is not None else found

    async def delete_group(self, group: str) -> None:
        """See `StoreClient.delete_group`."""
        await self._recorder.record(GroupDeleted(check_key(group)))
