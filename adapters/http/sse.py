"""Server-sent events (WHATWG HTML, 9.2): the subscriptions of one connection and how messages become events.

An event's id is the message's position in the log, its data one CloudEvent in JSON. A client that comes back with
`Last-Event-ID` goes on behind that position, and where the log is another one by now and has no such position, with
what comes from now on. The streams of one HTTP/2 connection share one cursor: where one of them has no room all of them
wait, until it has or is given up.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from adapters.cloudevents import to_structured
from adapters.http.response import Response
from adapters.http.transport import Exchange, Transport
from gateway.batch import Batch
from gateway.port import Deliveries, SubscriptionId
from store.format import LogOffset, Position

__all__ = ["OPENING", "EventStream", "EventStreams"]

MEMO: Final = "http.sse"
RETRY_MS: Final = 2_000  # when a client is to come back
HEARTBEAT: Final = b":\n\n"
OPENING: Final = Response(
    status=200,
    headers=((b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")),
    body=b"retry: %d\n\n" % RETRY_MS,
)


class EventStream:
    """One response to `GET /subscribe`."""

    __slots__ = ("exchange", "following", "quiet_since_ms", "stalled", "subs")

    def __init__(self, exchange: Exchange, subs: Sequence[SubscriptionId], now_ms: int) -> None:
        self.exchange = exchange
        self.subs = subs
        self.following = Position(LogOffset(0), 0)  # what lies before it has been sent
        self.quiet_since_ms = now_ms
        self.stalled = False  # it had no room for what it was offered


class EventStreams:
    """The event streams of one connection."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._streams: dict[Exchange, EventStream] = {}
        self._by_sub: dict[SubscriptionId, EventStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[EventStream]:
        return iter(list(self._streams.values()))

    def add(self, stream: EventStream) -> None:
        """A response has begun."""
        self._streams[stream.exchange] = stream
        for sub in stream.subs:
            self._by_sub[sub] = stream

    def remove(self, exchange: Exchange) -> EventStream | None:
        """A response has ended."""
        stream = self._streams.pop(exchange, None)
        if stream is not None:
            for sub in stream.subs:
                del self._by_sub[sub]
        return stream

    def has_room(self, exchange: Exchange) -> None:
        """A stream that had no room has some."""
        stream = self._streams.get(exchange)
        if stream is not None:
            stream.stalled = False

    def deliver(self, deliveries: Deliveries, *, now_ms: int) -> int:
        """Send what there is room for; how many deliveries that were, counted from the first."""
        batch = deliveries.batch
        by_sub, position = self._by_sub, batch.position
        chunks: dict[EventStream, list[bytes]] = {}
        rooms: dict[EventStream, int] = {}
        taken = 0
        for index, subs in zip(deliveries.picks, deliveries.subs, strict=True):
            at = position(index)
            streams = {by_sub[sub]: None for sub in subs if sub in by_sub and by_sub[sub].following <= at}
            full = False
            for stream in streams:
                if stream not in rooms:
                    rooms[stream] = self._transport.room(stream.exchange)
                    chunks[stream] = []
                if rooms[stream] <= 0:
                    full = stream.stalled = True
            if full:
                break
            if streams:
                event = _event(batch, index)
                following = Position(at.frame, at.row + 1)
                for stream in streams:
                    chunks[stream].append(event)
                    rooms[stream] -= len(event)
                    stream.following = following
            taken += 1
        for stream, events in chunks.items():
            if events:
                stream.quiet_since_ms = now_ms
                self._transport.send(stream.exchange, b"".join(events), now_ms=now_ms)
        return taken

    def beat(self, period_ms: int, *, now_ms: int) -> None:
        """Send a comment where nothing was sent for so long."""
        for stream in self._streams.values():
            if now_ms - stream.quiet_since_ms >= period_ms:
                stream.quiet_since_ms = now_ms
                if not stream.stalled:
                    self._transport.send(stream.exchange, HEARTBEAT, now_ms=now_ms)

    def quietest_ms(self) -> int | None:
        """When the stream that has been quiet longest last said something."""
        return min((stream.quiet_since_ms for stream in self._streams.values()), default=None)

    @property
    def stalled(self) -> bool:
        """Whether one of the streams has no room."""
        return any(stream.stalled for stream in self._streams.values())


def _event(batch: Batch, index: int) -> bytes:
    """A message as an event, encoded once for all its subscribers."""
    events: dict[int, bytes] = batch.memo.setdefault(MEMO, {})
    event = events.get(index)
    if event is None:
        # JSON has line breaks between its tokens alone. Each LF is given back by a field of its own; CR has no way.
        data = to_structured(batch.message(index)).replace(b"\r", b" ").replace(b"\n", b"\ndata: ")
        event = events[index] = b"id: %b\nevent: message\ndata: %b\n\n" % (str(batch.position(index)).encode(), data)
    return event
