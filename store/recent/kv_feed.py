"""The newest changes of watched namespaces, shared by all their watches.

A watcher that keeps up is served from here; one that does not finds that its place is gone and reads the log. So
a slow watcher costs nothing but its own reading.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter

from store.api.keys import Change

FEED_COUNT_MAX = 8_192  # changes kept of a namespace
FEED_BYTES_MAX = 4 << 20  # of their keys and values; the newest change is kept whatever its size
_revision = attrgetter("revision")


class KvFeed:
    """One namespace: every change from revision `complete_from` on."""

    def __init__(self, complete_from: int) -> None:
        self.complete_from = complete_from
        self.watchers = 0
        self.closed = False
        self._changes: list[Change] = []  # by revision
        self._size_bytes = 0
        self._waiting: asyncio.Future[None] | None = None

    def add(self, change: Change) -> None:
        """Adds the next change."""
        self._changes.append(change)
        self._size_bytes += _size(change)
        if len(self._changes) > FEED_COUNT_MAX or self._size_bytes > FEED_BYTES_MAX:
            self._drop()
        self._wake()

    def _drop(self) -> None:
        """Forgets the older half, whole revisions."""
        changes = self._changes
        left, keep = self._size_bytes, 0
        while keep < len(changes) - 1 and (
            len(changes) - keep > FEED_COUNT_MAX // 2
            or left > FEED_BYTES_MAX // 2
            or changes[keep].revision < self.complete_from
        ):
            left -= _size(changes[keep])
            self.complete_from = changes[keep].revision + 1
            keep += 1
        self._size_bytes = left
        del changes[:keep]

    def since(self, at: int) -> Sequence[Change]:
        """Returns the changes from a revision on, which is `complete_from` or later."""
        assert at >= self.complete_from
        return self._changes[bisect_left(self._changes, at, key=_revision) :]

    def close(self) -> None:
        """Ends the feed: nothing more will come."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
        self._waiting = None

    async def changed(self) -> None:
        """Waits until something is added, or the feed is closed."""
        if self.closed:
            return
        if self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiting)


class Feeds:
    """The feeds of all namespaces that are watched."""

    def __init__(self) -> None:
        self._feeds: dict[str, KvFeed] = {}
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._feeds)

    def add(self, namespace: str, change: Change) -> None:
        """Adds a change, of a namespace that may be watched."""
        feed = self._feeds.get(namespace)
        if feed is not None:
            feed.add(change)

    @contextmanager
    def follow(self, namespace: str, following: int) -> Iterator[KvFeed]:
        """Opens the feed of a watched namespace; `following` is above every revision so far."""
        feed = self._feeds.get(namespace)
        if feed is None:
            feed = self._feeds[namespace] = KvFeed(following)
            feed.closed = self._closed
        feed.watchers += 1
        try:
            yield feed
        finally:
            feed.watchers -= 1
            if not feed.watchers:
                del self._feeds[namespace]

    def close(self) -> None:
        """Ends all feeds: nothing more will come."""
        self._closed = True
        for feed in self._feeds.values():
            feed.close()


def _size(change: Change) -> int:
    return len(change.key) + len(change.value) + 100  # of the objects around key and value
