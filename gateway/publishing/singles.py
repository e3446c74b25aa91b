"""Single messages of many connections on their way into frames (docs/decisions/0038)."""

from collections.abc import Iterable, Sequence
from typing import Final

from gateway.domain.address import hash64
from gateway.port.adapter import Publish
from gateway.publishing.outgoing import OutgoingFrames
from gateway.publishing.publishing import (
    FRAME_PAYLOAD_BYTES,
    FRAME_ROWS,
    NOWHERE,
    Building,
    PublishSource,
    SinglePublisher,
    WaitingSingle,
)
from gateway.publishing.routing.router import SPREAD, Router
from store.api.message import encode
from store.format.frame import ROW

GATHERED_MAX: Final = 256  # messages that wait for a frame in flight; so many are worth a frame of their own


class Singles:
    """The single messages that wait for the next frame. `building` are the frames of this turn, by group.

    `gathers`: the store is in this process and syncs one frame after the other.
    """

    def __init__(
        self,
        router: Router,
        outgoing: OutgoingFrames,
        building: dict[int, Building],
        *,
        message_bytes_max: int,
        gathers: bool,
    ) -> None:
        self._gathers = gathers
        self._router = router
        self._outgoing = outgoing
        self._building = building
        self._message_bytes_max = message_bytes_max
        self._waiting: list[WaitingSingle] = []
        self.size_bytes = 0  # of the reads that brought them
        self._seen = 0  # of them; none is answered without a sync; <= len(_waiting)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, singles: Sequence[WaitingSingle]) -> None:
        """Keeps messages for the next frame."""
        self._waiting += singles
        self.size_bytes += sum([size_bytes for _, _, size_bytes in singles])

    def gather(self) -> bool:
        """Returns whether the next frame may wait for more of them: for the end of one that is in flight.

        A commit of few messages costs as much as one of many, and would wait for that frame's sync anyway.
        """
        return (
            self._gathers
            and self._outgoing.under_way > 0
            and len(self._waiting) < GATHERED_MAX
            and self.size_bytes < FRAME_PAYLOAD_BYTES
            and not self._is_urgent()
        )

    def _is_urgent(self) -> bool:
        """Returns whether one of them is answered before the sync of the frame in flight."""
        routes, waiting = self._router.routes, self._waiting
        while self._seen < len(waiting):
            route = routes.get(waiting[self._seen][1].message.address)
            if route is None or route.relaxed:
                return True
            self._seen += 1
        return False

    def enter(self, held: Iterable[PublishSource] = ()) -> list[tuple[SinglePublisher, Publish, int]]:
        """Adds the messages to the frames being built; returns those that are not plain, which take the general way.

        So do those of `held` publishers, which have others on that way. As the loop of `Ingest`, for messages of many
        connections, of each in the order of its reads.
        """
        router = self._router
        routes, hashes, groups, pack = router.routes, router.hashes, router.groups, ROW.pack
        singles, self._waiting = self._waiting, []
        self.size_bytes = self._seen = 0
        away, size_max = bool(self._outgoing.refusing), self._message_bytes_max
        others: list[tuple[SinglePublisher, Publish, int]] = []
        gone: set[PublishSource] = set(held)  # the publishers of these, whose later messages stay behind them
        frame, into, in_flight = NOWHERE, SPREAD, self._outgoing.singles_in_flight
        rows, records, expected, pos = frame.rows, frame.records, frame.singles, 0
        topic, protocol, counted = "", "", 0  # counted: of this topic and protocol
        for waiting in singles:
            publisher, single, size_bytes = waiting
            message = single.message
            route = routes.get(message.address)
            record = encode(message)
            size = len(record)
            if away or route is None or route.extra or route.asking or size > size_max or (gone and publisher in gone):
                effect = publisher.publish_of(single)
                others.append((publisher, effect, size_bytes))
                gone.add(publisher)
                continue
            in_flight[publisher] = in_flight.get(publisher, 0) + 1
            device = message.device
            key_hash = hashes.get(device) or router.key_hash(device)
            near = route.near
            queue = near[key_hash % len(near)]
            group = groups[queue] if route.group == SPREAD else route.group
            if group != into or pos >= FRAME_PAYLOAD_BYTES or len(rows) >= FRAME_ROWS:
                frame.pos = pos
                frame.count(protocol, topic, counted)
                topic, counted = "", 0
                if pos >= FRAME_PAYLOAD_BYTES or len(rows) >= FRAME_ROWS:
                    self._outgoing.append(self._building.pop(into))
                frame, into = self._building.get(group) or self._building.setdefault(group, Building(group)), group
                assert len(frame.rows) == len(frame.singles)  # so that the place of each is known
                rows, records, expected, pos = frame.rows, frame.records, frame.singles, frame.pos
            if route.topic is not topic or publisher.protocol is not protocol:
                frame.count(protocol, topic, counted)
                topic, protocol, counted = route.topic, publisher.protocol, 0
                frame.sync = frame.sync or not route.relaxed
            flags = route.row_flags if message.body else route.empty_flags
            id_ = message.id
            id_hash = hash64(id_) if id_ else 0
            rows.append(pack(queue, pos, size, flags, key_hash, route.address_hash, id_hash, message.time_ms))
            records.append(record)
            pos += size
            counted += 1
            expected.append(waiting)
        frame.pos = pos
        frame.count(protocol, topic, counted)
        return others
