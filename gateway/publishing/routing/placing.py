"""The rows of messages that the gateway itself moves: made like published ones, in parts by store group."""

from collections.abc import Sequence

from gateway.domain.address import hash64
from gateway.port.bodies import parts_of
from gateway.publishing.routing.router import Route, Router
from store.api.message import Message, encode
from store.format.frame import ROW, ROW_EXTRA


class _Part:
    """Rows and records for the log of one store group."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.records: list[bytes] = []
        self.pos = 0

    def add(self, record: bytes) -> int:
        """Adds a record; returns where it lies."""
        at, self.pos = self.pos, self.pos + len(record)
        self.records.append(record)
        return at


class Parts:
    """Messages on their way to the logs of store groups. `here` is the group that they come from."""

    def __init__(self, router: Router, here: int) -> None:
        self._router = router
        self._here = here
        self._parts: dict[int, _Part] = {}
        self.named: dict[int, None] = {}  # the queues that get something
        self.size_bytes = 0
        self.rows_count = 0

    def add(self, message: Message, route: Route, named: Sequence[int]) -> None:
        """Adds a message: for a queue of its topic, preferably one of this store group, and for named queues.

        One with a body in parts is for named queues alone, and so is one whose route has no topic.
        """
        if parts_of(message) is not None or not route.queues:
            self._add_named(message, route, named, encode(message), {})
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
        self.rows_count += 1
        self._add_named(message, route, named, record, places)

    def _add_named(
        self, message: Message, route: Route, named: Sequence[int], record: bytes, places: dict[int, int]
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
            self.named[other] = None
        self.size_bytes += len(record)
        self.rows_count += len(named)

    def _part(self, group: int) -> _Part:
        return self._parts.setdefault(group, _Part())

    def take_here(self) -> tuple[bytes, bytes]:
        """Takes the rows and the payload for the group that the messages come from, empty if there are none."""
        part = self._parts.pop(self._here, _Part())
        return b"".join(part.rows), b"".join(part.records)

    def elsewhere(self) -> list[tuple[bytes, bytes]]:
        """Returns rows and payload for each of the other groups."""
        parts = [part for group, part in sorted(self._parts.items()) if group != self._here]
        return [(b"".join(part.rows), b"".join(part.records)) for part in parts]
