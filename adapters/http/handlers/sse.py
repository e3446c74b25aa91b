"""Server-sent events (WHATWG HTML, 9.2): the subscriptions of one connection and how messages become events.

An event's id is the message's position in the log, its data one CloudEvent in JSON. A client that comes back with
`Last-Event-ID` resumes behind that position, or, where the log has been replaced and has no such position, with the
messages from now on. Where there are several logs, an id says besides where the stream goes on in each of the others:
`5f.3,1000000000000.0`; a log that an id says nothing of has joined since, and is read from its beginning. A stream
begins with an id that names no event, but where it begins in each log: `,5f.4,1000000000000.0`. So a client that loses
its connection before the first event misses none. The streams of one HTTP/2 connection share one cursor: where one of
them has no room all of them wait, until it has or is given up.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from adapters.cloudevents import to_structured
from adapters.http.handlers.actions import Follow
from adapters.http.wire.response import Response
from adapters.http.wire.transport import Exchange, Transport
from gateway.domain.batch import Batch, LostRange
from gateway.domain.cursor import Cursor, by_log
from gateway.domain.principal import Principal
from gateway.port.adapter import Deliveries, Subscribe, SubscriptionId, Token
from store.format.frame import LogOffset, Position, group_of

MEMO: Final = "http.sse"
RETRY_MS: Final = 2_000  # when a client is to come back
HEARTBEAT: Final = b":\n\n"
OPENING: Final = Response(
    status=200,
    headers=((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")),
    body=b"retry: %d\n\n" % RETRY_MS,
)
ORIGIN: Final = Position(LogOffset(0), 0)


def read_id(text: str) -> Cursor:
    """Returns where to go on behind the event of an id, or from the beginning of a stream that an id names.

    Raises ValueError for an id that this gateway has not given.
    """
    last, *others = text.split(",")
    cursor = tuple([Position.parse(part) for part in others])
    if last:
        at = Position.parse(last)
        cursor = (Position(at.frame, at.row + 1), *cursor)
    if len(by_log(cursor)) < len(cursor):
        raise ValueError(f"two positions in one log: {text!r}")
    return cursor


class EventStream:
    """One response to `GET /subscribe`."""

    __slots__ = ("exchange", "following", "quiet_since_ms", "stalled", "subs")

    def __init__(self, exchange: Exchange, subs: Sequence[SubscriptionId], now_ms: int) -> None:
        self.exchange = exchange
        self.subs = subs
        self.following: dict[int, Position] = {}  # by log: messages before it have been sent, or are not wanted
        self.quiet_since_ms = now_ms
        self.stalled = False  # it had no room for the events that it was offered

    def elsewhere(self, group: int) -> bytes:
        """Returns the part of the ids of events in one log that names the others."""
        others = [str(at) for other, at in sorted(self.following.items()) if other != group]
        return "".join([f",{at}" for at in others]).encode()


class EventStreams:
    """The event streams of one connection."""

    heartbeat = HEARTBEAT

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._streams: dict[Exchange, EventStream] = {}
        self._by_sub: dict[SubscriptionId, EventStream] = {}
        self._beginning: dict[Token, EventStream] = {}  # those whose beginning is not known yet
        self.blocked = False  # fewer deliveries were taken than offered

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[EventStream]:
        return iter(list(self._streams.values()))

    def open(self, stream: EventStream, asked: Follow, token: Token, who: Principal | None) -> Sequence[Subscribe]:
        """Begins a response to a client: returns the subscriptions to make. The token's outcome goes to `begun`."""
        self._streams[stream.exchange] = self._beginning[token] = stream
        for sub in stream.subs:
            self._by_sub[sub] = stream
        tokens = [token, *[None] * (len(stream.subs) - 1)]
        return [
            Subscribe(sub=sub, pattern=pattern, start=asked.start, where=asked.where, token=token, who=who)
            for sub, pattern, token in zip(stream.subs, asked.patterns, tokens, strict=True)
        ]

    def begun(self, token: Token, cursor: Cursor, *, now_ms: int) -> bool:
        """Notes where a stream begins in each log, and sends that; returns False for a token that is no stream's."""
        stream = self._beginning.pop(token, None)
        if stream is not None:
            stream.following = by_log(cursor)
            self.send_beginning(stream, now_ms)
        return stream is not None

    def send_beginning(self, stream: EventStream, now_ms: int) -> None:
        """Sends the id of a stream's beginning, which a client has until the first event has come."""
        positions = ",".join([str(at) for _, at in sorted(stream.following.items())])
        if positions:  # else there is no log yet: an id of none would be refused, and browsers give up then
            self._transport.send(stream.exchange, b"id: ,%b\n\n" % positions.encode(), now_ms=now_ms)

    def remove(self, exchange: Exchange) -> EventStream | None:
        """Ends the stream of a response that has ended."""
        stream = self._streams.pop(exchange, None)
        if stream is not None:
            for sub in stream.subs:
                del self._by_sub[sub]
        return stream

    def has_room(self, exchange: Exchange) -> None:
        """Resumes a stream that had no room and has some now."""
        stream = self._streams.get(exchange)
        if stream is not None:
            stream.stalled = False

    def deliver(self, deliveries: Deliveries, *, now_ms: int) -> int:
        """Sends deliveries as far as there is room; returns how many they were, counted from the first."""
        batch = deliveries.batch
        if isinstance(batch, LostRange):
            self.send_lost_range(batch, now_ms)
        by_sub, position, group = self._by_sub, batch.position, group_of(batch.frame)
        chunks: dict[EventStream, list[bytes]] = {}
        rooms: dict[EventStream, int] = {}
        elsewhere: dict[EventStream, bytes] = {}
        taken = 0
        for index, subs in zip(deliveries.picks, deliveries.subs, strict=True):
            at = position(index)
            streams = {
                by_sub[sub]: None for sub in subs if sub in by_sub and by_sub[sub].following.get(group, ORIGIN) <= at
            }
            full = False
            for stream in streams:
                if stream not in rooms:
                    rooms[stream] = self._transport.room(stream.exchange)
                    chunks[stream], elsewhere[stream] = [], stream.elsewhere(group)
                if rooms[stream] <= 0:
                    full = stream.stalled = True
            if full:
                break
            if streams:
                following = Position(at.frame, at.row + 1)
                event = self.encoded(batch, index, now_ms)
                for stream in streams:
                    said = self.named(event, elsewhere[stream]) if event else event
                    chunks[stream].append(said)
                    rooms[stream] -= len(said)
                    stream.following[group] = following
            taken += 1
        for stream, events in chunks.items():
            if said := b"".join(events):
                stream.quiet_since_ms = now_ms
                self._transport.send(stream.exchange, said, now_ms=now_ms)
            if stream.stalled:  # by what was sent now, perhaps: the transport does not know yet, or windows took it
                stream.stalled = self._transport.room(stream.exchange) <= 0
        self.blocked = self.blocked or taken < len(deliveries.picks)
        return taken

    def encoded(self, batch: Batch, index: int, now_ms: int) -> bytes:
        """Returns a message as an event, b"" for one that has expired."""
        return encoded_once(batch, index, MEMO, _event, now_ms)

    def named(self, event: bytes, elsewhere: bytes) -> bytes:
        """Returns an event whose id says of other logs, too, where the stream goes on."""
        if not elsewhere:
            return event
        end = event.index(b"\n")
        return event[:end] + elsewhere + event[end:]

    def send_lost_range(self, lost: LostRange, now_ms: int) -> None:
        """Sends an event without an id: the stream's last id stays the same."""
        start, end, group = Position(lost.frame, 0), Position(lost.end, 0), group_of(lost.frame)
        for stream in self._streams.values():
            if not lost.subs.isdisjoint(stream.subs) and stream.following.get(group, ORIGIN) < end:
                stream.quiet_since_ms = now_ms
                event = b'event: lost\ndata: {"from":"%b","to":"%b"}\n\n' % (str(start).encode(), str(end).encode())
                self._transport.send(stream.exchange, event, now_ms=now_ms)

    def beat(self, period_ms: int, *, now_ms: int) -> None:
        """Sends a comment where nothing was sent for so long."""
        for stream in self._streams.values():
            if now_ms - stream.quiet_since_ms >= period_ms:
                stream.quiet_since_ms = now_ms
                if not stream.stalled:
                    self._transport.send(stream.exchange, self.heartbeat, now_ms=now_ms)

    def quietest_ms(self) -> int | None:
        """Returns when the stream that has been quiet longest last said something."""
        return min((stream.quiet_since_ms for stream in self._streams.values()), default=None)

    @property
    def stalled(self) -> bool:
        """Returns whether one of the streams has no room."""
        return any(stream.stalled for stream in self._streams.values())

    @property
    def may_resume(self) -> bool:
        """Returns whether there is room for deliveries that were not taken."""
        return self.blocked and not self.stalled


def encoded_once(batch: Batch, index: int, memo: str, encode: Callable[[Batch, int], bytes], now_ms: int) -> bytes:
    """Returns a message as bytes that are made once for all its subscribers, b"" when its time to live is over.

    Its subscribers may come to it at different times: `memo` names where the batch keeps the bytes, with that time.
    """
    found: dict[int, tuple[bytes, int | None]] = batch.memo.setdefault(memo, {})
    if index not in found:
        found[index] = encode(batch, index), batch.messages[index].expires_at_ms
    said, expires_ms = found[index]
    return b"" if expires_ms is not None and expires_ms <= now_ms else said


def _event(batch: Batch, index: int) -> bytes:
    # JSON has line breaks between its tokens alone. Each LF is given back by a field of its own; CR has no way.
    data = to_structured(batch.message(index)).replace(b"\r", b" ").replace(b"\n", b"\ndata: ")
    return b"id: %b\nevent: message\ndata: %b\n\n" % (str(batch.position(index)).encode(), data)
