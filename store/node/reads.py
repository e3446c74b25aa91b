"""A master's store, whose keys and values are read only when it is certain that nobody else is master by now.

A master that was superseded and has not heard of it would answer with what was the newest once. So a read asks the
replicas in sync whether they follow still (`Master.ask_round`); reads that come while that is under way share the next
question, so that under load it costs a round trip and nothing else.

Messages are lent without asking: what is done with them is written down, and that is refused to who is master no more.
But who has not been answered for a second lends nothing, so that a master that was cut off and its successor lend the
same messages for a moment at most.
"""

from collections.abc import Awaitable, Callable, Sequence

from store.api.client import Entry, Lease, Page
from store.base.errors import NotWritable
from store.format.frame import QueueNumber
from store.local.local import LocalStore

__all__ = ["MasterStore"]


async def _alone() -> None:
    """Nobody else can be the master."""


def _answered() -> bool:
    """Nobody has to answer."""
    return False


class MasterStore(LocalStore):
    """A `LocalStore` whose owner sets two things.

    `agreed` returns when what is confirmed then is the newest there is. `cut_off` says whether too few replicas answer.
    """

    agreed: Callable[[], Awaitable[None]] = staticmethod(_alone)
    cut_off: Callable[[], bool] = staticmethod(_answered)

    async def take(
        self,
        queue: QueueNumber,
        owner: int,
        *,
        max_count: int,
        max_bytes: int = 1 << 20,
        group: str = "",
        invisible_ms: int | None = None,
    ) -> Sequence[Lease]:
        """See `StoreClient.take`. Raises `NotWritable`: too few replicas answer, another one may be lending by now."""
        if self.cut_off():
            raise NotWritable("too few replicas confirm that this is still the master: no messages are lent")
        return await super().take(
            queue, owner, max_count=max_count, max_bytes=max_bytes, group=group, invisible_ms=invisible_ms
        )

    async def kv_get(self, key: str, *, namespace: str = "") -> Entry | None:
        """See `StoreClient.kv_get`. Raises `NotMaster`, `NotWritable`: too few replicas answer."""
        await self.agreed()
        return await super().kv_get(key, namespace=namespace)

    async def kv_prefix(
        self, prefix: str, *, after: str = "", limit: int = 1000, namespace: str = ""
    ) -> Sequence[Entry]:
        """See `StoreClient.kv_prefix`. Raises like `kv_get`."""
        await self.agreed()
        return await super().kv_prefix(prefix, after=after, limit=limit, namespace=namespace)

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
        """See `StoreClient.kv_range`. Raises like `kv_get`."""
        if at_revision is None:
            await self.agreed()
        return await super().kv_range(
            start, end, namespace=namespace, after=after, limit=limit, at_revision=at_revision
        )

    async def kv_count(self, start: str = "", end: str | None = None, *, namespace: str = "") -> int:
        """See `StoreClient.kv_count`. Raises like `kv_get`."""
        await self.agreed()
        return await super().kv_count(start, end, namespace=namespace)

    async def kv_hold(self) -> int:
        """See `StoreClient.kv_hold`. Raises like `kv_get`."""
        await self.agreed()
        return await super().kv_hold()
