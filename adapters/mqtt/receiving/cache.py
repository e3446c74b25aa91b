"""Values worked out once for bytes that a peer repeats, within limits."""

from typing import Generic, TypeVar

TOPICS_MAX = 8_192  # topic names kept of one peer
TOPIC_BYTES_MAX = 256  # longer ones are looked at every time

V = TypeVar("V")


class Cache(Generic[V]):
    """Values by their bytes: at most `count_max`, beyond which all are dropped, of at most `key_bytes_max` bytes.

    `known` is read as the plain dictionary that it is: a method's call is a sixth of the cost of a PUBLISH.
    """

    __slots__ = ("_count_max", "_key_bytes_max", "known")

    def __init__(self, count_max: int, key_bytes_max: int) -> None:
        self._count_max = count_max
        self._key_bytes_max = key_bytes_max
        self.known: dict[bytes, V] = {}

    def keep(self, key: bytes, value: V) -> None:
        """Stores a value, unless its key is too long."""
        if len(key) <= self._key_bytes_max:
            if len(self.known) >= self._count_max:
                self.known.clear()
            self.known[key] = value


def topic_cache() -> Cache[V]:
    """Returns a cache by topic name."""
    return Cache(TOPICS_MAX, TOPIC_BYTES_MAX)
