"""The rows of messages that the gateway itself moves: made like published ones, in parts by store group."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from gateway.domain.address import hash64
from gateway.port.bodies import parts_of
from gateway.publishing.routing.router import Route, Router
from store.api.message import Message, encode
from store.format.frame import ROW, ROW_EXTRA

Source: TypeAlias = tuple[int, str, int]  # a message that is moved: its queue, the group that leases it, its offset
_NOTHING: Final[Mapping[Source, Collection[int]]] = MappingProxyType({})


class Elsewhere(NamedTuple):
    """Rows and their payload for another store group, and the queues that they put messages of some sources into."""

    rows: bytes
    payload: bytes
    placed: list[tuple[Source, int]]


class _Part:
    """Rows and records for the log of one store group."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.records: list[bytes] = []
        self.placed: list[tuple[Source, int]] = []
        self.pos = 0

    def add(self, record: bytes) -> int:
        """Adds a record; returns where it lies."""
        at, self.pos = self.pos, self.pos + len(record)
        self.records.append(record)
        return at


class Parts:
    """Messages on their way to the logs of store groups. `here` is the group that they come from.

    `stored` has the queues that messages were put into by earlier attempts: they are put into the others alone.
    """

    def __init__(self, router: Router, here: int, stored: Mapping[Source, Collection[int]] = _NOTHING) -> None:
        self._router = router
        self._here = here
        self._stored = stored
        self._parts: dict[int, _Part] = {}
        self.named: dict[int, None] = {}  # the queues that get something
        self.size_bytes = 0
        self.rows_count = 0

    def missing(self, named: Sequence[int], source: Source | None) -> Sequence[int]:
        """Returns those of some named queues that a message is not in yet."""
        stored = self._stored.get(source) if source is not None else None
        return [queue for queue in named if queue not in stored] if stored else named

    def add(self, message: Message, route: Route, named: Sequence[int], source: Source | None = None) -> None:
        """Adds a message: for a queue of its topic, preferably one of this store group, and for named queues.

        One with a body in parts is for named queues alone, and so is one whose route has no topic.
        """
        missing, placed = self.missing(named, source), len(self.missing(route.queues, source)) < len(route.queues)
        if parts_of(message) is not None or not route.queues or placed:
            self._add_named(message, route, missing, encode(message), places={}, source=source)
            return
        router, record, here = self._router, encode(message), self._here
        key_hash = router.key_hash(message.key or message.device)
        near = [queue for queue in route.queues if router.groups[queue] == here] or route.queues
        queue = near[key_hash % len(near)]
        part, places = self._part(router.groups[queue]), {}
        at = places[router.groups[queue]] = part.add(record)
        flags = route.row_flags if message.body else route.empty_flags
        id_hash = hash64(message.id) if message.id else 0
        part.rows.append(
            ROW.pack(queue, at, len(record), flags, key_hash, route.address_hash, id_hash, message.time_ms)
        )
        if source is not None:
            part.placed.append((source, queue))
        self.rows_count += 1
        self._add_named(message, route, missing, record, places=places, source=source)

    def _add_named(
        self,
        message: Message,
        route: Route,
        named: Sequence[int],
        record: bytes,
        *,
        places: dict[int, int],
        source: Source | None,
    ) -> None:
        """Adds rows for named queues; `places` says where the record lies already, by store group."""
        for other in named:
            group = self._router.groups[other]
            part = self._part(group)
            if group not in places:
                places[group] = part.add(record)
            part.rows.append(
                ROW.pack(other, places[group], len(record), ROW_EXTRA, 0, route.address_hash, 0, message.time_ms)
            )
            if source is not None:
                part.placed.append((source, other))
            self.named[other] = None
        self.size_bytes += len(record)
        self.rows_count += len(named)

    def _part(self, group: int) -> _Part:
        return self._parts.setdefault(group, _Part())

    def take_here(self) -> tuple[bytes, bytes]:
        """Takes the rows and the payload for the group that the messages come from, empty if there are none."""
        part = self._parts.pop(self._here, _Part())
        return b"".join(part.rows), b"".join(part.records)

    def elsewhere(self) -> list[Elsewhere]:
        """Returns what goes to each of the other groups."""
        parts = [part for group, part in sorted(self._parts.items()) if group != self._here]
        return [Elsewhere(b"".join(part.rows), b"".join(part.records), part.placed) for part in parts]
