"""Values that are ahead of a view, by key, until the view has them."""

from collections import deque
from typing import Generic, TypeVar

from store.format.frame import LogOffset

K = TypeVar("K")
V = TypeVar("V")


class Pending(Generic[K, V]):
    """Newest values by key, let go in the order of the log."""

    def __init__(self) -> None:
        self._values: dict[K, tuple[LogOffset, V]] = {}
        self._order: deque[tuple[LogOffset, K]] = deque()

    def put(self, frame: LogOffset, key: K, value: V) -> None:
        """Gives a key a value, from this frame on."""
        self._values[key] = (frame, value)
        self._order.append((frame, key))

    def get(self, key: K) -> V | None:
        """Returns a key's value; None when the view has it."""
        found = self._values.get(key)
        return found[1] if found is not None else None

    def has(self, key: K) -> bool:
        """Returns whether there is a value for a key."""
        return key in self._values

    def items(self) -> list[tuple[K, V]]:
        """Returns all keys and values."""
        return [(key, value) for key, (_, value) in self._values.items()]

    def trim(self, below: LogOffset) -> list[K]:
        """Frees the entries of frames below a log offset: the view has them. Returns their keys."""
        gone: list[K] = []
        order = self._order
        while order and order[0][0] < below:
            frame, key = order.popleft()
            found = self._values.get(key)
            if found is not None and found[0] == frame:
                del self._values[key]
                gone.append(key)
        return gone
