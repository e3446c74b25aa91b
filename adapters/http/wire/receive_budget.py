"""Bodies of requests that are not all there yet, or wait until it is known who sends them, or for a turn.

Each connection may hold some (`max_body_bytes`, `max_held_bytes`), and there can be many connections. All together may
hold `arriving_bytes_max`, and those without an authenticated client half of it, so that they leave room for others.
"""

from typing import Final

from adapters.http.wire.abuse import SmallFrames
from adapters.http.wire.options import HttpOptions

FREE_BYTES: Final = 64 * 1024  # of one connection: as much as a single read may bring
CROWDED: Final = "too many bodies arrive at once"  # why one of them is refused


class ReceiveBudget:
    """The bytes that all connections of a process hold, and the small frames that they bring."""

    __slots__ = ("held_bytes", "small")

    def __init__(self) -> None:
        self.held_bytes = 0
        self.small = SmallFrames()


class ConnectionBudget:
    """The bytes that one connection holds."""

    __slots__ = ("_all", "_max_bytes", "held_bytes", "small")

    def __init__(self, together: ReceiveBudget, options: HttpOptions) -> None:
        self.held_bytes = 0
        self._all = together
        self.small = together.small
        self._max_bytes = options.arriving_bytes_max

    def holds(self, held_bytes: int, *, known: bool) -> bool:
        """Notes how many bytes a connection holds; returns whether it may. `known`: a client on it has been let in."""
        together, grown = self._all, held_bytes > self.held_bytes
        together.held_bytes += held_bytes - self.held_bytes
        self.held_bytes = held_bytes
        if not grown or held_bytes <= FREE_BYTES:
            return True
        return together.held_bytes <= (self._max_bytes if known else self._max_bytes // 2)
