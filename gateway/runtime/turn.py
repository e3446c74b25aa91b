"""The reads of one turn of the poller, together: reads of one plain message each take the short path as one batch.

Devices mostly send one message at a time. For many of them a turn asks the adapter once, the ingest once, and writes
the acknowledgements of a frame in one loop (docs/decisions/0038).
"""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias, cast

from gateway.base.pause_guard import PauseGuard
from gateway.domain.access import Permissions
from gateway.domain.errors import Refusal
from gateway.domain.forwarding import ForwardingSettings
from gateway.ops.pressure import Pressure
from gateway.port.adapter import DONE, Adapter, Outcome, Publish, Token
from gateway.port.single import Single, SingleAdapter, Singles
from gateway.publishing.publishing import NONE_DENIED, WaitingSingle
from gateway.runtime.endpoint import OUTSTANDING_BYTES_MAX, Endpoint, Hub, ListenerContext
from gateway.runtime.unread import UnreadBudget
from gateway.security.limits import ConnectionAdmission, ConnectionLimiter
from gateway.sockets.batches import CALLS, BatchCalls
from store.base import logs
from store.base.clock import now_ms
from store.format.frame import Position

UNKNOWN: Final = Token(-1)  # of effects whose adapter has failed

log = logs.get(__name__)


class PlainSocket(Protocol):
    """A socket that may be written to together with others (`gateway.sockets.transport`)."""

    writable_number: int  # of the socket; below 0 where the transport has to be asked

    def wrote(self, data: bytes, taken: int) -> None:
        """Notes that not all was written there: so many bytes, or below 0 the error's number."""


class StreamEndpoint(Endpoint):
    """The endpoint of one peer and a stream of bytes, as turns and the hub know it."""

    __slots__ = (
        "admission",
        "early_bytes",
        "ended",
        "plain",
        "reading",
        "singles",
        "singles_in_flight",
        "told",
        "transport",
    )

    adapter: Adapter
    admission: ConnectionAdmission
    transport: asyncio.Transport | None
    plain: PlainSocket | None  # of the transport, where it is one of the poller's; None: only its transport writes
    reading: bool
    ended: bool  # the peer has closed its half
    early_bytes: int  # unauthenticated input without an authenticated client yet; it counts in the process's budget
    singles: Singles | None  # None: its adapter knows no single messages
    singles_in_flight: list[Single]  # in the order of their reads
    told: list[Publish]  # their effects, once the adapter knows them: then it knows all of them

    @property
    def takes_more(self) -> bool:
        """Returns whether another single message may be in flight beside those that are, where nothing else is."""
        return (
            len(self.singles_in_flight) < cast(SingleAdapter, self.adapter).singles_max
            and self.outstanding_bytes < OUTSTANDING_BYTES_MAX
            and not self.told
        )

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Reads input that is not a single message, or may not take the short path."""

    def publish_of(self, single: Single) -> Publish:
        """See `gateway.publishing.publishing.SinglePublisher`."""
        self.tell_adapter()
        singles = self.singles_in_flight
        at = next(index for index, one in enumerate(singles) if one is single)
        del singles[at]
        return self.told.pop(at)

    def tell_adapter(self) -> bool:
        """Tells the adapter of the single messages in flight, whose outcomes it then answers.

        False, and the connection ends, for a bug of ours: the messages are stored all the same.
        """
        known = True
        for single in self.singles_in_flight[len(self.told) :]:
            try:
                effect = cast(SingleAdapter, self.adapter).publish_of(single)
            except Exception:  # noqa: BLE001 - whatever it is, it must not reach other connections
                _give_up(self)
                known = False
                effect = Publish((single.message,), UNKNOWN, who=single.who)
            self.told.append(effect)
        return known

    @abstractmethod
    def failed(self, single: Single, error: Refusal, size_bytes: int) -> None:
        """See `gateway.publishing.publishing.SinglePublisher`."""

    @abstractmethod
    def ended_by_adapter(self, single: Single, outcome: Outcome, size_bytes: int) -> None:
        """Passes the outcome of a single message to the adapter."""

    @abstractmethod
    def settled(self) -> None:
        """Handles the effects of its last message's acknowledgement, besides the acknowledgement itself."""

    @abstractmethod
    def dismiss(self) -> None:
        """Tells a peer to go that would not be let in any more."""

    @abstractmethod
    def abort(self) -> None:
        """Closes without another word."""


Read: TypeAlias = tuple[StreamEndpoint, bytes]


class StreamHub(Hub):
    """The parts of a gateway process that its connections share besides those of all endpoints."""

    connections: dict[int, StreamEndpoint]
    connection_limiter: ConnectionLimiter
    forwarding: ForwardingSettings | None
    others: dict[str, ListenerContext]  # by listener: whose adapters a connection may be handed over to
    lingering: int  # connections that are closing: see `gateway.runtime.connection`
    pauses: PauseGuard
    pressure: Pressure
    body_bytes_max: int  # of a body, whole or in parts
    turn: "ReadBatch"
    unread: UnreadBudget  # of responses that peers do not take
    write_buffer_bytes_max: int

    @abstractmethod
    def joined(self, connection: StreamEndpoint) -> None:
        """Counts a connection that has begun."""

    @abstractmethod
    def left(self, connection: StreamEndpoint) -> None:
        """Releases everything that an ended connection held."""

    @abstractmethod
    def calls_under_way(self, endpoint: Endpoint) -> int:
        """Returns how many requests of an endpoint have no answer yet."""


class ReadBatch:
    """Takes the short way with the plain messages of a turn, and leaves other reads to their connections."""

    def __init__(self, hub: StreamHub, *, batches: BatchCalls = CALLS) -> None:
        self._hub = hub
        self._batches = batches

    def received(self, reads: Sequence[Read]) -> None:
        """Takes the reads of this turn, at most one of each connection."""
        slept = self._hub.pauses.slept
        others: list[Read] = []
        taken: list[Read] = []
        singles: Singles | None = None
        for read in reads:
            connection = read[0]
            can = connection.singles
            if (
                can is None
                or (
                    (count := connection.outstanding_count)
                    and (count != len(connection.singles_in_flight) or not connection.takes_more)
                )
                or connection.gone
                or connection.pace is not None
                or connection.early_bytes
                or (slept and connection.has_session)
            ):
                others.append(read)
                continue
            if can is not singles:
                if singles is not None:
                    others += self._publish(singles, taken)
                    taken = []
                singles = can
            taken.append(read)
        if singles is not None:
            others += self._publish(singles, taken)
        for connection, data in others:
            try:
                connection.receive(data)
            except Exception:  # noqa: BLE001 - our own bug, whatever it is, must not reach other connections
                _give_up(connection)

    def _publish(self, singles: Singles, reads: Sequence[Read]) -> list[Read]:
        """Publishes the reads that are a few plain messages each; returns the others."""
        try:
            found = singles([(connection.adapter, data) for connection, data in reads], now_ms())
        except Exception:  # our own bug: as if the adapter had found nothing
            log.exception("an adapter failed")
            return list(reads)
        others: list[Read] = []
        waiting: list[tuple[StreamEndpoint, Single, int]] = []
        denied: list[tuple[StreamEndpoint, Single, int, Mapping[int, Refusal]]] = []
        flow, bytes_in = reads[0][0].flow, 0
        for read, some in zip(reads, found, strict=True):
            if not some:
                others.append(read)
                continue
            connection, size_bytes = read[0], len(read[1])
            bytes_in += size_bytes
            if len(some) > 1:
                size_bytes //= len(some)
            for single in some:
                permissions = (single.who or connection.principal).permissions
                denials = NONE_DENIED if permissions.access is None else _refused(connection, permissions, single)
                if denials is None:
                    break
                connection.outstanding_count += 1
                connection.outstanding_bytes += size_bytes
                connection.singles_in_flight.append(single)
                if denials:
                    denied.append((connection, single, size_bytes, denials))
                else:
                    waiting.append((connection, single, size_bytes))
        flow.bytes_in += bytes_in  # all are of one kind of adapter
        ingest = self._hub.ingest
        if waiting:
            ingest.publish_singles(waiting)
        for connection, single, size_bytes, denials in denied:
            ingest.publish(connection, connection.publish_of(single), size_bytes, denials)
            connection.guard(connection.flush)
        if self._hub.crowded:
            for connection, _, _ in waiting:
                connection.guard(connection.flush)
        return others

    def acknowledged(self, waiting: Sequence[WaitingSingle], first: Position) -> None:
        """Writes the acknowledgements of single messages that are stored, row by row from a place on."""
        at_ms, frame = now_ms(), first.frame
        singles = cast("Sequence[tuple[StreamEndpoint, Single, int]]", waiting)
        numbers: list[int] = []
        acknowledgements: list[bytes] = []
        written: list[StreamEndpoint] = []
        unsettled: list[StreamEndpoint] = []
        others: list[tuple[int, StreamEndpoint, Single, int]] = []
        several: dict[StreamEndpoint, int] = {}  # that may have more than one: where the first is
        # Other writes to these sockets come after this loop's: a transport might keep a part of one, and then the
        # acknowledgement would come in its middle.
        for row, (connection, single, size_bytes) in enumerate(singles, first.row):
            plain = connection.plain
            alone = connection.singles_in_flight
            if plain is None or (number := plain.writable_number) < 0 or connection.told or alone[0] is not single:
                others.append((row, connection, single, size_bytes))
                continue
            acknowledgement = single.acknowledgement
            if single.answer is not None:
                try:
                    acknowledgement = single.answer(single, Position(frame, row), at_ms)
                except Exception:  # noqa: BLE001 - our own bug, whatever it is, must not reach other connections
                    _give_up(connection)
                    continue
            del alone[0]
            if several and connection in several:  # one write: the first might not be taken whole
                acknowledgements[several[connection]] += acknowledgement
            else:
                if alone:
                    several[connection] = len(numbers)
                numbers.append(number)
                acknowledgements.append(acknowledgement)
                written.append(connection)
            connection.outstanding_count -= 1
            connection.outstanding_bytes -= size_bytes
            connection.flow.bytes_out += len(acknowledgement)
            if not connection.reading or connection.ended or connection.unanswered is not None:
                unsettled.append(connection)
        self._write(numbers, acknowledgements, written)
        for connection in unsettled:
            connection.guard(connection.settled)
        for row, connection, single, size_bytes in others:
            try:
                self._acknowledge(connection, single, size_bytes, Position(frame, row), at_ms)
            except Exception:  # noqa: BLE001 - likewise
                _give_up(connection)

    def _write(self, numbers: list[int], acknowledgements: list[bytes], written: list[StreamEndpoint]) -> None:
        """Writes to the sockets of connections, all in one call."""
        try:
            short = self._batches.send(numbers, acknowledgements)
        except Exception:  # our own bug; it is unknown which connections were written to, and a stream must have no gap
            log.exception("acknowledgements cannot be written")
            for connection in written:
                connection.abort()
            return
        for index, taken in short:
            connection = written[index]
            try:
                assert connection.plain is not None  # `acknowledged` leaves the others to their transports
                connection.plain.wrote(acknowledgements[index], taken)
            except Exception:  # likewise, of this connection
                log.exception("an acknowledgement cannot be kept", endpoint=connection.id)
                connection.abort()

    def _acknowledge(
        self, connection: StreamEndpoint, single: Single, size_bytes: int, position: Position, at_ms: int
    ) -> None:
        """Writes the acknowledgement of one message by its connection's transport, or has the adapter say it."""
        transport = connection.transport
        if (
            connection.told  # the adapter knows of it, and answers
            or connection.singles_in_flight[0] is not single  # one before it is in flight still
            or transport is None
            or connection.gone
            or not connection.writable
            or transport.is_closing()
        ):
            outcome = DONE if single.answer is None else Outcome(first=position)
            connection.ended_by_adapter(single, outcome, size_bytes)
            return
        acknowledgement = single.acknowledgement
        if single.answer is not None:
            acknowledgement = single.answer(single, position, at_ms)
        del connection.singles_in_flight[0]
        connection.outstanding_count -= 1
        connection.outstanding_bytes -= size_bytes
        connection.flow.bytes_out += len(acknowledgement)
        transport.write(acknowledgement)
        if not connection.reading or connection.ended or connection.unanswered is not None:
            connection.guard(connection.settled)


def _refused(connection: StreamEndpoint, permissions: Permissions, single: Single) -> Mapping[int, Refusal] | None:
    """Returns the refusal of a message that may not be published; None, and the connection ends, for a bug of ours."""
    try:
        return permissions.refused((single.message,))
    except Exception:  # noqa: BLE001 - it is unknown whether it may
        _give_up(connection)
        return None


def _give_up(connection: StreamEndpoint) -> None:
    """Ends a connection that our own bug has reached, and no other."""
    log.exception("a connection cannot be served", protocol=connection.protocol, endpoint=connection.id)
    connection.close("internal error")
