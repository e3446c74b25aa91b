"""The adapter: one connection, from its first bytes to the last response."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar

from adapters.http.handlers import waiting
from adapters.http.handlers.actions import Action, Ask, Command, Follow, HandlerContext, Part, Respond, Store, Watch
from adapters.http.handlers.commands import Commands
from adapters.http.handlers.credentials import Credentials, Identities, authentication, denied
from adapters.http.handlers.key_streams import KeyStreams
from adapters.http.handlers.once import EachOnce, repeated
from adapters.http.handlers.origin import finished
from adapters.http.handlers.repeats import SINGLES_MAX, Published, Repeats, Run
from adapters.http.handlers.socket_streams import SocketStreams
from adapters.http.handlers.sse import OPENING, EventStream, EventStreams
from adapters.http.versions import choose, handed_over, upgraded
from adapters.http.wire.event_socket import EventSocket
from adapters.http.wire.h1 import Http1
from adapters.http.wire.http2.transport import Http2
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.receive_budget import CROWDED, ConnectionBudget, ReceiveBudget
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response, problem, refused
from adapters.http.wire.transport import Arrived, Drained, Event, Exchange, Gone, Transport, Upgrade
from gateway.domain.errors import Refusal
from gateway.domain.idempotency import IdempotencyKey, KeyRepeated
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Adapter,
    Call,
    Close,
    ConnectionInfo,
    Deliverable,
    Deliveries,
    Effect,
    GiveUp,
    Outcome,
    Publish,
    Random,
    Request,
    Settled,
    SubscriptionId,
    Token,
    Unsubscribe,
)
from gateway.port.single import Single
from store.api.message import Message


class HttpConnection(Adapter):
    """One HTTP connection, of either version (`gateway.port.adapter.Adapter`).

    All requests that are complete in one read are published together; a request is answered when its messages are
    durable. On HTTP/1.1, requests that change something and requests that do not wait for each other, so that
    pipelined requests take effect in their order; behind an event stream none begins.
    """

    def __init__(self, info: ConnectionInfo, options: HttpOptions, arriving: ReceiveBudget, random: Random) -> None:
        self._info, self._random, self._share = info, random, ConnectionBudget(arriving, options)
        self._options, self.singles_max = options, min(options.max_pipelined, SINGLES_MAX)
        self.transport: Transport | None = None
        self._streams: EventStreams | None = None
        self._keys: KeyStreams | None = None
        self._commands: Commands | None = None  # made for the first one
        self._opening = b""  # the first bytes, until they tell the version
        self._upgraded = b""  # written before the transport's output
        self._now_ms = 0
        self.active_ms: int | None = None  # when something last happened
        self._closed = self._leaving = False
        self._tokens = self._subs = 0
        self._identities = Identities()
        self._asking: dict[Token, Credentials] = {}
        self._requests = waiting.Requests()
        self.repeats = Repeats(options)
        self._published: dict[Token, Published] = {}
        self._asked: dict[Token, waiting.PendingQuestion] = {}
        self._who: Principal | None = None  # the sender of the request that is handled, and of all that is collected
        # Collected in this turn:
        self._effects: list[Effect] = []
        self._messages: list[Message] = []
        self._parts: list[Part | Run] = []

    # ---- Adapter

    @property
    def wants_data(self) -> bool:
        """Returns whether more may be read."""
        waits = self._streaming and bool(self._requests)  # until the stream ends: there need not be more
        return not (self._closed or waits) and (self.transport is None or self.transport.wants_data)

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes held of responses that the peer does not take (`gateway.port.adapter.Responder`)."""
        return 0 if self.transport is None else self.transport.unread_bytes

    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes bytes from the peer."""
        self._begin_turn(now_ms)
        if self._closed:
            return ()
        given = bytes(data)
        transport = self.transport
        if transport is None:
            self._opening += given
            chosen = choose(self._opening, self._info.alpn, self._options, self._share.small)
            if chosen is None:
                return ()
            transport = self._use(chosen)
            given, self._opening = self._opening, b""
        run = self.repeats.run(given, now_ms, waits=bool(self._asked or self._requests or self._streaming))
        if run is not None:
            self._speak_for(run.template.who)
            self._parts, self._messages = [run], list(run.messages)
        self._take(transport.receive(given[run.end :] if run else given, now_ms=now_ms))
        effects = self._end_turn()
        self.repeats.learn(given, effects, self._published)
        return effects

    @staticmethod
    def singles(reads: Sequence[tuple["HttpConnection", bytes]], now_ms: int) -> Sequence[Sequence[Single]]:
        """Returns the messages of each read that is a few requests like one before them on their connection."""
        found = [one.repeats.singles(data, now_ms) for one, data in reads]
        for (one, _), singles in zip(reads, found, strict=True):
            if singles:
                one.active_ms = now_ms
        return found

    def publish_of(self, single: Single) -> Publish:
        """Returns the request that `receive` would have made of the gateway."""
        if self.transport is None:
            return Publish((single.message,), self._token(), who=single.who)  # its outcome goes to no client
        (effect,) = self.receive(single.read, now_ms=self.active_ms or 0)  # when the last of them was read
        assert isinstance(effect, Publish)
        return Publish([single.message], effect.token, who=effect.who)  # with the time at which it was read

    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes an outcome: messages are durable, a question is answered, a sender is known, or a stream begins."""
        if self._streams is not None and self._streams.begun(token, outcome.value, now_ms=now_ms):
            return ()
        self._begin_turn(now_ms)
        if (published := self._published.pop(token, None)) is not None:
            parts, key = published
            for part in parts:
                if isinstance(part, Run):
                    part.respond(outcome, now_ms=now_ms)
                elif key is not None and isinstance(outcome.error, KeyRepeated):
                    self._ask(*repeated(part, key, outcome.error))
                else:
                    self._respond(part.exchange, part.request, part.answered(outcome))
        elif (asked := self._asked.pop(token, None)) is not None:
            self._answered(asked, asked.answered(outcome))
        elif token in self._asking:
            self._identified(self._asking.pop(token), outcome)
        elif not (self._commands and self._commands.completed(token, outcome)) and self._keys is not None:
            self._keys.completed(token, outcome, now_ms=now_ms)
        self._advance()
        return self._end_turn()

    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Takes messages for event streams."""
        assert isinstance(deliveries, Deliveries)
        if self._streams is None or self._closed:
            return len(deliveries.picks)
        self._now_ms = self.active_ms = now_ms
        return self._streams.deliver(deliveries, now_ms=now_ms)

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Sends heartbeats, and ends requests that take too long."""
        self._now_ms = now_ms
        if self.active_ms is None:
            self.active_ms = now_ms
        transport, streams, keys = self.transport, self._streams, self._keys
        if transport is not None and streams is not None and keys is not None:
            streams.beat(self._options.sse_heartbeat_s * 1000, now_ms=now_ms)
            keys.beat(self._options.sse_heartbeat_s * 1000, now_ms=now_ms)
            self._end_streams(self._identities.expired(now_ms))
            self._take(transport.tick(now_ms=now_ms))
            self._resume()
            self._advance()
        if not self.busy and now_ms - self.active_ms >= self._options.idle_timeout_s * 1000:
            self._begin_shutdown()
        return self._end_turn()

    def deadline_ms(self) -> int | None:
        """Returns the earliest thing that `tick` would do."""
        if self._closed:
            return None
        if self.active_ms is None:
            return 0  # the clock is not known before the first call that brings it
        if (first := self._requests.first) is not None and self._may_begin(first):
            return 0  # there was no room for its answer
        if self._streams is not None and self._streams.may_resume:
            return 0
        times = [] if self.busy else [self.active_ms + self._options.idle_timeout_s * 1000]
        ends_ms = self._identities.deadline_ms(), None if self.transport is None else self.transport.deadline_ms()
        times += [at_ms for at_ms in ends_ms if at_ms is not None]
        quiet = [streams.quietest_ms() for streams in (self._streams, self._keys) if streams is not None]
        times += [since_ms + self._options.sse_heartbeat_s * 1000 for since_ms in quiet if since_ms is not None]
        return min(times, default=None)

    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Ends streams, answers requests in flight, then closes: the gateway is going down.

        A client that is dismissed learns no more here: the answer to its next request says it.
        """
        self._begin_turn(now_ms)
        self._begin_shutdown()
        return self._end_turn()

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Frees all bodies, as the connection is gone. Requests in flight still refer to the object."""
        self._closed, self._requests = True, waiting.Requests()
        if self.transport is not None:
            self.transport.release()
        self.transport = self._streams = self._keys = self._commands = None
        self.repeats.follow(None)
        self._share.holds(0, known=True)
        return ()

    def take_output(self) -> bytes:
        """Returns the bytes to write now."""
        out = self.transport.take_output() if self.transport is not None else b""
        out, self._upgraded = self._upgraded + out, b""
        return out

    # ---- turns

    @property
    def busy(self) -> bool:
        """Returns whether an exchange is in progress."""
        return self.transport is not None and self.transport.busy

    @property
    def _streaming(self) -> bool:
        """Returns whether no answer can be sent before a stream of events has ended."""
        return isinstance(self.transport, Http1) and bool(self._streams or self._keys)

    def _begin_turn(self, now_ms: int) -> None:
        self._now_ms = self.active_ms = now_ms

    def _end_turn(self) -> Sequence[Effect]:
        """Ends this turn: publishes, keeps to the share of bytes that may be held, and returns the effects."""
        self._publish()
        transport, share = self.transport, self._share
        if transport is not None:
            held_bytes = transport.arriving_bytes + self._requests.body_bytes
            if held_bytes != share.held_bytes and not share.holds(held_bytes, known=self._identities.anybody):
                self._refuse_bodies(transport)
                share.holds(transport.arriving_bytes, known=True)
            if transport.finished and not self._closed:
                self._closed = True
                self._effects.append(Close())
        effects, self._effects = self._effects, []
        return effects

    def _refuse_bodies(self, transport: Transport) -> None:
        """Answers the requests with bodies that nothing has been done with yet."""
        transport.refuse_arriving()
        self._refuse(self._requests.drop(bodies=True), CROWDED)

    def _refuse(self, dropped: Iterable[waiting.Pending], reason: str) -> None:
        for exchange, request, *_ in dropped:
            self._respond(exchange, request, problem(503, reason, (b"retry-after", b"1")))

    def _publish(self, key: IdempotencyKey | None = None) -> None:
        """Publishes the collected messages of one sender."""
        if self._messages:
            token = self._token()
            self._effects.append(Publish(self._messages, token, who=self._who, key=key))
            self._published[token] = self._parts, key
            self._messages, self._parts = [], []

    def _token(self) -> Token:
        self._tokens += 1
        return Token(self._tokens)

    # ---- versions

    def _use(self, transport: Http1 | Http2 | EventSocket) -> Transport:
        self.repeats.follow(transport)
        self.transport, self._requests.ordered = transport, transport.ordered
        if not isinstance(transport, EventSocket):
            transport.refusal_of = partial(waiting.head_refusal, options=self._options, info=self._info)
        self._streams = SocketStreams(transport) if isinstance(transport, EventSocket) else EventStreams(transport)
        self._keys = KeyStreams(transport, call=self._call, begin=self._begin_events, respond=self._respond)
        return transport

    def _upgrade(self, event: Upgrade) -> None:
        """Goes on in the protocol that was offered, or in HTTP/1.1 where that is not possible."""
        http1 = self.transport
        assert isinstance(http1, Http1)
        if (mqtt := handed_over(event, self._options, self._info)) is not None:
            self._effects.append(mqtt)
            return
        other = upgraded(event, self._options, self._share.small, secure=self._info.secure, now_ms=self._now_ms)
        if other is None:
            self._take(http1.receive(http1.decline(event.request, event.rest), now_ms=self._now_ms))
            return
        transport, first = other
        self._upgraded = http1.take_output() + first
        self._use(transport)
        if event.rest or isinstance(transport, EventSocket):
            self._take(transport.receive(event.rest, now_ms=self._now_ms))

    # ---- events of the transport

    def _take(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                self._arrived(event.exchange, event.request)
            elif isinstance(event, Gone):
                self._gone(event.exchange)
            elif isinstance(event, Drained):
                self._drained(event.exchange)
            else:
                self._upgrade(event)
        self._advance()

    def _arrived(self, exchange: Exchange, request: HttpRequest) -> None:
        """Finds the handler and the sender of a request, and answers at once if there is none."""
        found = waiting.judged(request, self._options, self._info, page=isinstance(self.transport, EventSocket))
        if isinstance(found, Response):
            self._respond(exchange, request, found)
        elif request.body and self._streaming:
            self._respond(exchange, request, problem(503, waiting.BEHIND_STREAM))
        else:
            self._requests.append(waiting.Pending(exchange, request, *found))

    def _gone(self, exchange: Exchange) -> None:
        if self._streams is not None and (stream := self._streams.remove(exchange)) is not None:
            self._effects += [Unsubscribe(sub=sub) for sub in stream.subs]
            self._resume()
        for held in (self._keys, self._commands, self._requests):
            if held is not None:
                held.gone(exchange)
        self._effects += [GiveUp(token=token) for token, one in self._asked.items() if one.exchange == exchange]
        self._identities.gone(exchange)

    def _drained(self, exchange: Exchange) -> None:
        for streams in (self._streams, self._keys):
            if streams is not None:
                streams.has_room(exchange)
        self._resume()

    def _resume(self) -> None:
        """Asks again for the events that were not taken."""
        if self._streams is not None and self._streams.may_resume:
            self._streams.blocked = False
            self._effects.append(Settled())

    # ---- requests

    def _advance(self) -> None:
        """Handles the requests whose turn has come.

        Their sender is looked up once for all with the same credentials.
        """
        requests = self._requests
        while (pending := requests.pop(self._may_begin)) is not None:
            credentials = pending.credentials
            principal = self._identities.known(credentials, now_ms=self._now_ms)
            if principal is not None:
                self._handle(pending, principal)
            elif requests.wait(pending):
                self._asking[self._call(authentication(credentials))] = credentials

    def _may_begin(self, pending: waiting.Pending) -> bool:
        """Returns whether a request has room for its answer and nothing to wait for before it."""
        if self._streaming:
            return False
        publishing = bool(self._published or self._messages)
        return waiting.may_begin(pending, self.transport, self._requests, self._asked.values(), publishing=publishing)

    def _identified(self, credentials: Credentials, outcome: Outcome) -> None:
        answered = self._requests.answered(credentials)
        if outcome.error is not None:
            for pending in answered:
                self._respond(pending.exchange, pending.request, denied(credentials, outcome.error))
            return
        self._identities.learn(credentials, outcome.value)
        self._requests.put_back(answered)

    def _handle(self, pending: waiting.Pending, principal: Principal) -> None:
        exchange, request, found, credentials = pending
        if isinstance(self.transport, Http1) and not self.transport.awaits(exchange):
            return  # HTTP/1.0: a stream before it has ended the connection
        self._speak_for(principal)
        try:
            host = (credentials and credentials.address) or str(self._info.peer[0] if self._info.peer else "")
            context = HandlerContext(self._options, principal, self._now_ms, host, found.below, self._random)
            action = found.handler(request, context)
        except (HttpError, Refusal) as error:
            self._respond(exchange, request, refused(error))
            return
        if isinstance(action, Follow | Watch):
            if self._leaving:
                self._refuse([pending], waiting.LEAVING)
                return
            if request.method == "HEAD":  # its head alone, which tells no length (RFC 9110, 8.6)
                self._begin_events(exchange, request)
                self._end_streams([exchange])
                return
            self._identities.streams_to(principal, exchange)
        self._actions[type(action)](self, exchange, request, action)

    def _speak_for(self, principal: Principal | None) -> None:
        if self._who is not principal:
            self._publish()
            self._who = principal

    def _answered(self, asked: waiting.PendingQuestion, found: Response | Store | Command | None) -> None:
        if isinstance(found, Store | Command):
            self._speak_for(asked.who)
            self._actions[type(found)](self, asked.exchange, asked.request, found)
        else:
            self._respond(asked.exchange, asked.request, found)

    def _command(self, exchange: Exchange, request: HttpRequest, action: Command) -> None:
        if self.transport and self.transport.awaits(exchange):  # else it was reset before its turn
            self._commands = self._commands or Commands(call=self._call, respond=self._respond)
            self._ask(exchange, request, self._commands.begin(exchange, request, action))

    def _store(self, exchange: Exchange, request: HttpRequest, action: Store) -> None:
        if action.keys:
            for one in EachOnce(action).parts():
                self._store(exchange, request, one)
            return
        if action.key is not None:
            self._publish()  # a message with a key is published alone
        self._parts.append(Part(exchange, request, len(self._messages), len(action.messages), action.reply))
        self._messages += action.messages
        if action.key is not None:
            self._publish(action.key)

    def _ask(self, exchange: Exchange, request: HttpRequest, action: Ask) -> None:
        self._asked[self._call(action.request)] = waiting.PendingQuestion(exchange, request, self._who, *action[1:])

    def _call(self, request: Request[Any]) -> Token:
        token = self._token()
        self._effects.append(Call(request=request, token=token, who=self._who))
        return token

    def _watch(self, exchange: Exchange, request: HttpRequest, action: Watch) -> None:
        assert self._keys is not None
        self._keys.open(exchange, request, action.request, now_ms=self._now_ms)

    def _begin_events(self, exchange: Exchange, request: HttpRequest) -> None:
        assert self.transport is not None
        self.transport.begin(exchange, finished(request, OPENING, self._options), now_ms=self._now_ms)

    def _stream(self, exchange: Exchange, request: HttpRequest, action: Follow) -> None:
        assert self._streams is not None
        subs = [SubscriptionId(self._subs + n) for n in range(1, len(action.patterns) + 1)]
        self._subs += len(subs)
        stream = EventStream(exchange, subs, self._now_ms)
        self._effects += self._streams.open(stream, action, self._token(), self._who)
        self._begin_events(exchange, request)

    def _respond(self, exchange: Exchange, request: HttpRequest, response: Response | None) -> None:
        assert self.transport is not None
        if response is not None:  # else others of the same request have no answer yet
            if self._commands is not None:
                self._commands.gone(exchange)
            self.transport.respond(exchange, finished(request, response, self._options), now_ms=self._now_ms)

    def _begin_shutdown(self) -> None:
        """Takes no more requests; ends streams, which would never end, and refuses what waits for their end."""
        if self.transport is None:
            if not self._closed:
                self._closed = True
                self._effects.append(Close())
            return
        self._leaving = True
        self.transport.begin_shutdown()
        if self._streaming:
            self._refuse(self._requests.drop(), waiting.LEAVING)
        self._end_streams([stream.exchange for stream in self._streams or ()])
        self._end_streams(self._keys or ())

    def _end_streams(self, exchanges: Iterable[Exchange]) -> None:
        assert self.transport is not None
        for exchange in exchanges:
            self.transport.finish(exchange, now_ms=self._now_ms)
            self._gone(exchange)

    _actions: ClassVar[dict[type[Action], Callable[..., None]]] = {
        Respond: lambda self, exchange, request, action: self._respond(exchange, request, action.response),
        Store: _store,
        Ask: _ask,
        Command: _command,
        Follow: _stream,
        Watch: _watch,
    }
