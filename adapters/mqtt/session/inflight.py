"""Packet identifiers in use towards the client: QoS 1 and 2 deliveries that it has not acknowledged (MQTT 5.0, 4.3).

    PUBLISH -> sent -> PUBACK                          QoS 1
    PUBLISH -> sent -> PUBREC -> released -> PUBCOMP   QoS 2

After a session is taken up again, `resume` decides how to handle a message that the log brings a second time.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.session.session_state import PacketExchanges, PositionTuple, SavedDelivery
from gateway.domain.errors import ProtocolError
from store.format.frame import GROUP_SHIFT, QueueOffset

PACKET_ID_MAX = 65_535


def group_of(place: PositionTuple) -> int:
    """Returns the store group whose log a place is in: places of different logs have no order."""
    return place[0] >> GROUP_SHIFT


class Recall(NamedTuple):
    """A session's record of a place in the log: delivered for good, or sent with an identifier."""

    done: bool = False
    packet_id: int = 0
    qos: int = 0


class Kept(NamedTuple):
    """A retained or shared message that is in flight: the log will not bring it again."""

    record: bytes  # as encoded by `store.api.message`
    identifiers: tuple[int, ...]  # of its subscriptions
    retain: bool = True  # its RETAIN flag


class LeasedOffset(NamedTuple):
    """A QoS 1 message of a shared subscription that is in flight: others get it unless it is acknowledged."""

    queue: str
    number: int  # of the queue
    offset: QueueOffset


class Resume:
    """Deliveries that a resumed session remembers, and that the log will bring once more."""

    __slots__ = ("_done", "_last", "_sent", "_settled", "reserved")

    def __init__(self, state: PacketExchanges) -> None:
        self._settled = {group_of(place): place for place in state.settled_places()}
        self._done = frozenset(state.done)
        self._sent: dict[PositionTuple, SavedDelivery] = {
            one.place: one for one in state.sent if one.place is not None and not one.released
        }
        self.reserved = {one.packet_id: None for one in self._sent.values()}  # not free for new deliveries
        self._last: dict[int, PositionTuple] = {}  # by log, the position behind which nothing is remembered
        for place in (*self._settled.values(), *self._done, *self._sent):
            self._last[group_of(place)] = max(place, self._last.get(group_of(place), place))

    @property
    def done_count(self) -> int:
        """Returns the number of QoS 2 deliveries by an earlier connection, not before the oldest that was in flight."""
        return len(self._done)

    @property
    def nothing(self) -> bool:
        """Returns whether nothing is remembered any more."""
        return not self._last

    def recall(self, place: PositionTuple) -> Recall | None:
        """Returns the record of a place; None when the place is new."""
        if place < self._settled.get(group_of(place), place) or place in self._done:
            return Recall(done=True)
        found = self._sent.pop(place, None)
        if found is None:
            return None
        del self.reserved[found.packet_id]
        return Recall(packet_id=found.packet_id, qos=found.qos)

    def overtaken(self, place: PositionTuple) -> list[SavedDelivery]:
        """Forgets and returns the deliveries before `place`: its log did not bring them again, and will not."""
        group = group_of(place)
        gone = [one for at, one in self._sent.items() if at < place and group_of(at) == group]
        for one in gone:
            assert one.place is not None
            del self._sent[one.place]
            del self.reserved[one.packet_id]
        return gone

    def pending(self) -> Iterable[SavedDelivery]:
        """Returns the deliveries that the logs have not brought again yet."""
        return self._sent.values()

    def over(self, place: PositionTuple) -> bool:
        """Forgets a log whose last remembered place is reached; returns whether nothing is remembered of any log."""
        last = self._last.get(group_of(place))
        if last is not None and place >= last:
            del self._last[group_of(place)]
        return not self._last


class Inflight:
    """The identifiers, and how far in each log the client has acknowledged."""

    __slots__ = (
        "_first",
        "_kept",
        "acknowledged",
        "again",
        "done",
        "durable",
        "exact",
        "freed",
        "kept_bytes",
        "leased",
        "limit",
        "moved",
        "next_packet_id",
        "released",
        "resume",
        "sent",
        "taken",
        "unsaved",
    )

    def __init__(self) -> None:
        self.limit = PACKET_ID_MAX  # of `sent`, `released` and `done`, but for those of an earlier connection
        self.durable = False  # `done` is kept, for a later connection
        self.sent: dict[int, PositionTuple | None] = {}  # awaiting PUBACK or PUBREC, in the order sent
        self.exact: dict[int, None] = {}  # those of `sent` that are QoS 2
        self.released: dict[int, None] = {}  # awaiting PUBCOMP
        self.done: dict[PositionTuple, None] = {}  # QoS 2 with a PUBREC, not before `settled`
        self.leased: dict[int, LeasedOffset] = {}  # those of `sent` that are leased by a shared subscription
        self.acknowledged: list[LeasedOffset] = []  # those that are to be settled
        self._kept: dict[int, Kept] = {}  # those of `sent` that the log will not bring again, in a durable session
        self.kept_bytes = 0  # of those
        self.unsaved = False  # one of those was acknowledged that has been saved as sent
        self.again: dict[int, SavedDelivery] = {}  # retained messages that no earlier connection got acknowledged
        self.taken: dict[int, PositionTuple] = {}  # by log, behind the last delivery taken
        self._first: dict[
            int, tuple[int, PositionTuple] | None
        ] = {}  # by log, the oldest of `sent` when it was last looked for
        self.resume: Resume | None = None
        self.moved = False  # a message was acknowledged or taken since the last report
        self.freed = False  # an identifier has become free since the last report
        self.next_packet_id = 1

    def restore(self, state: PacketExchanges) -> None:
        """Restores the session's stored exchanges."""
        self.taken = {group_of(place): place for place in state.settled_places()}
        self.next_packet_id = state.next_packet_id
        self.done = dict.fromkeys(state.done)
        self.released = {one.packet_id: None for one in state.sent if one.released}
        self.again = {one.packet_id: one for one in state.sent if one.record is not None}
        resume = Resume(state)
        if not resume.nothing:
            self.resume = resume

    @property
    def next_id(self) -> int:
        """Returns the identifier at which the search for a free one begins."""
        return self.next_packet_id

    @property
    def room(self) -> int:
        """Returns how many more QoS 1 and 2 deliveries may be in flight, each with an identifier that is free.

        The entries of `done` that an earlier connection left do not count until the logs have brought those again: they
        may be more than the limit by now, and messages acknowledged in between come before them once more.
        """
        used = len(self.sent) + len(self.released)
        if self.resume is None and not self.again:  # an identifier for each that the limit allows
            return self.limit - used - len(self.done)
        reserved = left = 0
        if self.resume is not None:
            reserved, left = len(self.resume.reserved), self.resume.done_count
        free = PACKET_ID_MAX - used - len(self.again) - reserved
        return min(free, self.limit - used - max(0, len(self.done) - left))

    @property
    def room_again(self) -> int:
        """Returns how many deliveries that an earlier connection has sent may be sent again.

        `done` does not count: it may be as long as that one's limit, and ends only behind the messages that are sent
        again.
        """
        return self.limit - len(self.sent) - len(self.released)

    @property
    def ready(self) -> bool:
        """Returns whether there is room for the next message."""
        return (self.room if self.resume is None else self.room_again) > 0

    def ids(self) -> Iterator[int]:
        """Yields free packet identifiers; each must be in use, and there be room, before the next is taken."""
        sent, released = self.sent, self.released
        while True:
            packet_id = self.next_packet_id
            reserved = self.resume.reserved if self.resume is not None else ()
            while packet_id in sent or packet_id in released or packet_id in reserved or packet_id in self.again:
                packet_id = packet_id % PACKET_ID_MAX + 1
            self.next_packet_id = packet_id % PACKET_ID_MAX + 1
            yield packet_id

    def acknowledge(self, packet_ids: Sequence[int]) -> None:
        """Takes PUBACKs; skips unknown identifiers. Raises `ProtocolError` (0x82) for a QoS 2 delivery."""
        sent, exact = self.sent, self.exact
        self.moved = self.freed = True
        for packet_id in packet_ids:
            if packet_id in exact:
                raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "PUBACK for a QoS 2 message")
            sent.pop(packet_id, None)
        if self._kept:
            for packet_id in packet_ids:
                self._drop_kept(packet_id)
        if self.leased:
            leased = self.leased
            self.acknowledged += [leased.pop(packet_id) for packet_id in packet_ids if packet_id in leased]

    def take_back(self, packet_id: int) -> None:
        """Removes a QoS 2 message that is not sent after all."""
        if packet_id in self.sent:
            del self.sent[packet_id], self.exact[packet_id]
            self._drop_kept(packet_id)

    def keep(self, packet_id: int, kept: Kept) -> None:
        """Keeps a retained or shared message that has been sent, which a later connection may have to send again."""
        self._kept[packet_id] = kept
        self.kept_bytes += len(kept.record)

    def _drop_kept(self, packet_id: int) -> None:
        kept = self._kept.pop(packet_id, None)
        if kept is not None:
            self.kept_bytes -= len(kept.record)
            self.unsaved = True

    def received(self, packet_id: int, *, refused: bool) -> bool:
        """Handles PUBREC; returns whether a PUBREL has to follow. Raises `ProtocolError` (0x82) for a QoS 1 delivery.

        A client that refuses the message (a code from 0x80 on) has ended the exchange (4.3.3).
        """
        if packet_id not in self.sent:
            return packet_id in self.released
        if packet_id not in self.exact:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "PUBREC for a QoS 1 message")
        place = self.sent.pop(packet_id)
        del self.exact[packet_id]
        self._drop_kept(packet_id)
        self.moved = self.freed = True
        if place is not None and self.durable:
            self.done[place] = None
        if not refused:
            self.released[packet_id] = None
        return not refused

    def completed(self, packet_id: int) -> None:
        """Takes a PUBCOMP; skips an unknown identifier."""
        if packet_id in self.released:
            del self.released[packet_id]
            self.freed = True

    def took(self, place: PositionTuple) -> None:
        """Notes that deliveries of one log have been taken; `place` is behind the last of them."""
        group = group_of(place)
        self.taken[group] = place
        self.moved = True
        if self._first.get(group) is None:
            self._first.pop(group, None)

    def oldest(self) -> tuple[PositionTuple, ...]:
        """Returns the first place in each log whose delivery is not acknowledged, where there is one."""
        found = [self._oldest(group) for group in self.taken]
        return tuple([place for place in found if place is not None])

    def _oldest(self, group: int) -> PositionTuple | None:
        """Returns the oldest, looked for anew once it is acknowledged: with two logs it need not be near the front."""
        sent = self.sent
        if group in self._first:
            first = self._first[group]
            if first is None or sent.get(first[0]) == first[1]:
                return None if first is None else first[1]
        for packet_id, place in sent.items():
            if place is not None and place[0] >> GROUP_SHIFT == group:
                self._first[group] = (packet_id, place)
                return place
        self._first[group] = None
        return None

    def settled(self) -> tuple[PositionTuple, ...]:
        """Returns the place before which all is delivered for good, in each log from which something was taken."""
        settled = dict(self.taken)
        settled.update((group_of(place), place) for place in self.oldest())
        for place in [place for place in self.done if place < settled.get(group_of(place), place)]:
            del self.done[place]
        return tuple(settled.values())

    def saved(self) -> tuple[SavedDelivery, ...]:
        """Returns the deliveries for `PacketExchanges.sent`."""
        self.unsaved = False
        exact, kept, leased, nothing = self.exact, self._kept, self.leased, (None, ())
        sent = [
            SavedDelivery(i, 2 if i in exact else 1, False, at, *kept.get(i, nothing))
            for i, at in self.sent.items()
            if i not in leased
        ]
        pending = list(self.resume.pending()) if self.resume is not None else []
        return (*self.again.values(), *pending, *sent, *(SavedDelivery(i, 2, released=True) for i in self.released))
