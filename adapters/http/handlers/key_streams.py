"""Watches of keys as server-sent events: a stream asks for changes when it has room for them, and not before."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from adapters.http.handlers.keys import change_event
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response, refused
from adapters.http.wire.transport import Exchange, Transport
from gateway.domain.errors import Refusal
from gateway.port.adapter import Outcome, Request, Token
from gateway.port.kv import NextChanges, UnwatchKeys, WatchKeys
from store.api.keys import Changes

HEARTBEAT: Final = b":\n\n"


class _Stream:
    """One response to `GET /kv?watch`. Its number in the gateway is the exchange's."""

    __slots__ = ("asking", "begun", "exchange", "quiet_since_ms", "request")

    def __init__(self, exchange: Exchange, request: HttpRequest, now_ms: int) -> None:
        self.exchange = exchange
        self.request = request
        self.begun = False  # the head of the response is sent
        self.asking = False  # changes are asked for; not while there is no room for them
        self.quiet_since_ms = now_ms


class KeyStreams:
    """The watches of one connection. `call` asks the gateway, `begin` and `respond` answer requests."""

    def __init__(
        self,
        transport: Transport,
        *,
        call: Callable[[Request[Any]], Token],
        begin: Callable[[Exchange, HttpRequest], None],
        respond: Callable[[Exchange, HttpRequest, Response], None],
    ) -> None:
        self._transport = transport
        self._call = call
        self._begin = begin
        self._respond = respond
        self._streams: dict[Exchange, _Stream] = {}
        self._asked: dict[Token, Exchange] = {}  # streams that are gone included

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[Exchange]:
        return iter(list(self._streams))

    def open(self, exchange: Exchange, request: HttpRequest, asked: WatchKeys, *, now_ms: int) -> None:
        """Takes a request to watch."""
        self._streams[exchange] = _Stream(exchange, request, now_ms)
        self._ask(exchange, msgspec.structs.replace(asked, watch=int(exchange)))

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> bool:
        """Takes the answer to a question of a stream; False when the question was not of these streams."""
        exchange = self._asked.pop(token, None)
        if exchange is None:
            return False
        stream = self._streams.get(exchange)
        if stream is None:
            return True
        if outcome.error is not None:
            self._refused(stream, outcome.error, now_ms)
        elif not stream.begun:
            stream.begun = True
            self._begin(exchange, stream.request)
            # The id of no event: a client that loses its connection before the first one goes on from here.
            self._transport.send(exchange, b"id: %d\n\n" % outcome.value, now_ms=now_ms)
            self._go_on(stream)
        else:
            stream.asking = False
            self._send(stream, outcome.value, now_ms)
            self._go_on(stream)
        return True

    def _refused(self, stream: _Stream, error: Refusal, now_ms: int) -> None:
        """Ends a watch that cannot begin, or go on: with a revision that is compacted, or a damaged log."""
        if not stream.begun:
            del self._streams[stream.exchange]
            self._respond(stream.exchange, stream.request, refused(error))
            return
        event = b"event: error\ndata: %b\n\n" % refused(error).body
        self._transport.send(stream.exchange, event, now_ms=now_ms)
        self._transport.finish(stream.exchange, now_ms=now_ms)
        self.gone(stream.exchange)

    def _send(self, stream: _Stream, found: Changes, now_ms: int) -> None:
        changes = found.changes
        events = [
            change_event(change, last=i + 1 == len(changes) or changes[i + 1].revision != change.revision)
            for i, change in enumerate(changes)
        ]
        stream.quiet_since_ms = now_ms
        self._transport.send(stream.exchange, b"".join(events), now_ms=now_ms)

    def _go_on(self, stream: _Stream) -> None:
        if self._transport.room(stream.exchange) > 0:
            stream.asking = True
            self._ask(stream.exchange, NextChanges(watch=int(stream.exchange)))

    def _ask(self, exchange: Exchange, asked: Request[Any]) -> None:
        self._asked[self._call(asked)] = exchange

    def gone(self, exchange: Exchange) -> None:
        """Ends the watch of a response that has ended."""
        stream = self._streams.pop(exchange, None)
        if stream is not None:
            self._ask(exchange, UnwatchKeys(watch=int(exchange)))

    def has_room(self, exchange: Exchange) -> None:
        """Resumes a stream that had no room and has some now."""
        stream = self._streams.get(exchange)
        if stream is not None and stream.begun and not stream.asking:
            self._go_on(stream)

    def beat(self, period_ms: int, *, now_ms: int) -> None:
        """Sends a comment where nothing was sent for so long."""
        for stream in self._streams.values():
            if stream.begun and now_ms - stream.quiet_since_ms >= period_ms:
                stream.quiet_since_ms = now_ms
                if stream.asking:
                    self._transport.send(stream.exchange, HEARTBEAT, now_ms=now_ms)

    def quietest_ms(self) -> int | None:
        """Returns when the stream that has been quiet longest last said something."""
        return min((stream.quiet_since_ms for stream in self._streams.values()), default=None)
