"""The newest commands that a controller has applied, for those who follow its state."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager

FEED_BYTES_MAX = 8 << 20  # of commands kept, where others follow; a node further behind takes a snapshot
ENTRY_BYTES = 144  # bytes that count for a command besides its own: its index, its digest, and their places


class CommandFeed:
    """A window on the log's end: every command of an index in `start` (exclusive) to `end` (inclusive) is here."""

    def __init__(self) -> None:
        self.bytes_max = FEED_BYTES_MAX
        self.start = self.end = 0
        self._indexes: list[int] = []  # ascending
        self._commands: list[bytes] = []  # one for each index
        self._digests: list[bytes] = []  # of all commands up to each of them
        self._first = b""  # of all before the first one
        self._gone = 0  # how many in front of both lists are forgotten, and not cut off yet
        self._bytes = 0
        self._wakes: dict[asyncio.Event, None] = {}  # in order: the first to be woken is the first to send

    def restart(self, index: int, digest: bytes = b"") -> None:
        """Begins at `index`, the index of a snapshot that the state was replaced by."""
        self._first, self._digests = digest, []
        self.start = self.end = index
        self._indexes, self._commands = [], []
        self._gone = self._bytes = 0

    def add(self, index: int, command: bytes, digest: bytes = b"") -> None:
        """Adds a command that was applied; `digest` is of all commands with it."""
        self._indexes.append(index)
        self._digests.append(digest)
        self._commands.append(command)
        self._bytes += len(command) + ENTRY_BYTES
        self.end = index
        while self._bytes > self.bytes_max and self._gone < len(self._indexes) - 1:
            self.start = self._indexes[self._gone]
            self._bytes -= len(self._commands[self._gone]) + ENTRY_BYTES
            self._commands[self._gone] = b""
            self._gone += 1
        if 2 * self._gone > len(self._indexes):
            self._first = self._digests[self._gone - 1]
            del self._indexes[: self._gone], self._commands[: self._gone], self._digests[: self._gone]
            self._gone = 0

    def reached(self, index: int) -> None:
        """Tells those who follow that all up to `index` is applied."""
        self.end = max(self.end, index)
        for wake in self._wakes:
            wake.set()

    def digest_at(self, index: int) -> bytes:
        """Returns the digest of all commands up to an index; empty: it is not known here."""
        if not self.start <= index <= self.end:
            return b""
        at = bisect_right(self._indexes, index)
        return self._digests[at - 1] if at else self._first

    def since(self, index: int, bytes_max: int) -> tuple[int, tuple[bytes, ...]] | None:
        """Returns commands after `index`, about so many bytes, and up to which index they go; None: too far behind."""
        if index < self.start:
            return None
        first = at = bisect_right(self._indexes, index)
        while at < len(self._commands) and bytes_max > 0:
            bytes_max -= len(self._commands[at]) + ENTRY_BYTES
            at += 1
        reached = self._indexes[at - 1] if at < len(self._commands) else max(self.end, index)
        return reached, tuple(self._commands[first:at])

    @contextmanager
    def wakes(self, event: asyncio.Event) -> Iterator[None]:
        """Sets an event whenever there is more."""
        self._wakes[event] = None
        try:
            yield
        finally:
            self._wakes.pop(event, None)
