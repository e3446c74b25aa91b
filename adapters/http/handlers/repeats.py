"""Requests that repeat one before them on their connection but for id, time, length and body, as a device's mostly do.

The head of a request that was published is taken apart once, into the bytes that stay and the values that change.
Requests with the same bytes where they stay are messages without being parsed: a few that are a whole read (`Single`),
and those that begin a read, one behind the other (`Run`). All others are parsed.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import msgspec

from adapters.cloudevents import NATIVE, STRUCTURED_JSON, canonical_ms, parse_ms
from adapters.http.handlers.actions import Part, Stored
from adapters.http.wire.coding import compressed
from adapters.http.wire.h1 import Http1
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import HttpRequest
from adapters.http.wire.response import Response, date_header, encode_json, reason_phrase, refused
from adapters.http.wire.transport import Exchange
from gateway.domain.idempotency import IdempotencyKey
from gateway.domain.principal import Principal
from gateway.port.adapter import Effect, Outcome, Publish, Token
from gateway.port.single import Single
from store.api.message import Message
from store.format.frame import LogOffset, Position

HEAD_BYTES_MAX: Final = 2_048  # a larger head is not kept
VALUE_BYTES_MAX: Final = 256  # of a value that changes
ANSWER_BYTES_MAX: Final = 1_000  # of a body: an id, which JSON may make twice as long, and a place
FEW_MAX: Final = 4  # requests of a read that are messages by themselves; more of them are a run
SINGLES_MAX: Final = 256  # in flight when a read is looked at: stored in another order, each is looked up among all
LEARNED_MAX: Final = 4  # templates of a connection that no request has repeated; then no more are made

LENGTH: Final = b"content-length"
ID: Final = b"ce-id"
TIME: Final = b"ce-time"
TRACE: Final = b"traceparent"
_CHANGING: Final = frozenset({LENGTH, ID, TIME, TRACE})
_NEVER_REPEATED: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"idempotency-key"})
_STRUCTURED: Final = STRUCTURED_JSON.partition("+")[0]
# Of visible ASCII, all that stands for itself in an attribute's value (CloudEvents HTTP binding 1.0.2, 3.1.3.2).
_PLAIN: Final = re.compile(rb"[!#$&-~]+")
_FIRST: Final = Position(LogOffset(0), 0)


class _Template:
    """A request whose changing values are left out.

    `pieces` are the bytes before each of them, and which it is; the last are those behind all.
    """

    __slots__ = ("_headers", "_model", "_options", "_pieces", "_request", "_response", "_status", "_tail", "who")

    def __init__(
        self,
        pieces: list[tuple[bytes, bytes]],
        model: Message,
        who: Principal,
        exchanged: tuple[HttpRequest, Response],
        options: HttpOptions,
    ) -> None:
        request, response = exchanged
        *self._pieces, (self._tail, _) = pieces
        self._model = msgspec.structs.replace(model, body=b"")
        codings = [header for header in request.headers if header[0] == b"accept-encoding"]  # all that a refusal needs
        self._request = HttpRequest(method=request.method, target=request.target, headers=codings)
        self._response = response
        self._options = options
        self.who = who
        self._status = b"HTTP/1.1 %d %b\r\ndate: " % (response.status, reason_phrase(response.status).encode())
        self._headers = b"".join([b"\r\n%b: %b" % header for header in response.headers]) + b"\r\ncontent-length: "

    def singles(self, data: bytes, now_ms: int) -> Sequence[Single]:
        """Returns the messages of a read; none where it is anything else than a few such requests."""
        singles: list[Single] = []
        at, size = 0, len(data)
        while at < size:
            found = self.match(data, at, now_ms)
            if found is None or size > FEW_MAX * (found[1] - at):
                return ()
            begins, (message, at) = at, found
            id_ = encode_json(message.id) if message.id else b""
            singles.append(Single(message, id_, self.who, self.answer, data[begins:at]))
        return singles

    def match(  # noqa: PLR0912 - one loop: a call for each value costs
        self, data: bytes, at: int, now_ms: int
    ) -> tuple[Message, int] | None:
        """Returns the message of such a request at a place of a read, and where it ends; None for anything else."""
        # Once a request, 3.5 us: 1 for the values, 1 for `Message`.
        begins = at
        who, model = self.who, self._model
        id_, time_ms, native, traceparent = "", now_ms, model.native, model.traceparent
        length = -1
        for literal, kind in self._pieces:
            if not data.startswith(literal, at):
                return None
            at += len(literal)
            end = data.find(b"\r", at, at + VALUE_BYTES_MAX)
            value = data[at:end]
            if end < 0 or _PLAIN.fullmatch(value) is None:
                return None
            at = end
            if kind is LENGTH:
                if not value.isdigit():
                    return None
                length = int(value)
            elif kind is ID:
                id_ = value.decode()
            elif kind is TRACE:
                traceparent = value.decode()
            else:
                text = value.decode()
                known_ms = canonical_ms(text)
                if known_ms is not None:
                    time_ms = known_ms
                else:
                    try:
                        time_ms = max(parse_ms(text), 0)
                    except ValueError:
                        return None
                    assert native is not None
                    native = {**native, NATIVE: {**native[NATIVE], "time": text}}
        if not data.startswith(self._tail, at):
            return None
        at += len(self._tail)
        end = at + length
        options = self._options
        if end > len(data) or length > options.max_body_bytes or at - begins > options.max_header_bytes:
            return None
        if who.expires_at_ms is not None and who.expires_at_ms <= now_ms:
            return None
        message = Message(
            model.address,
            data[at:end],
            time_ms,
            model.protocol,
            model.device,
            model.qos,
            False,
            id_,
            None,
            model.type,
            model.content_type,
            model.content_encoding,
            None,
            None,
            model.reply_to,
            model.correlation,
            traceparent,
            model.principal,
            model.properties,
            native,
        )
        return message, end

    def answer(self, single: Single, place: Position, now_ms: int) -> bytes:
        """Returns the response to such a request whose message is stored at a place."""
        body = self.body(single.acknowledgement, place)
        return b"%b%b%b%d\r\n\r\n%b" % (self._status, date_header(now_ms // 1000), self._headers, len(body), body)

    def answers(self, messages: Sequence[Message], first: Position, now_ms: int) -> bytes:
        """Returns the responses to such requests whose messages are stored row by row from a place on."""
        begins = b"%b%b%b" % (self._status, date_header(now_ms // 1000), self._headers)
        bodies = [
            self.body(encode_json(one.id) if one.id else b"", Position(first.frame, row))
            for row, one in enumerate(messages, first.row)
        ]
        return b"".join([b"%b%d\r\n\r\n%b" % (begins, len(body), body) for body in bodies])

    def response(self, message: Message, stored: Stored) -> Response:
        """Returns the response to such a request."""
        if stored.refused:
            return compressed(self._request, refused(stored.refused[0]), self._options.compress_bytes_min)
        body = self.body(encode_json(message.id) if message.id else b"", next(iter(stored.positions[0]), None))
        return msgspec.structs.replace(self._response, body=body)

    @staticmethod
    def body(id_: bytes, place: Position | None) -> bytes:
        """Returns the response's body; the position is the id where the request says none."""
        position = b"null" if place is None else b'"%x.%x"' % place
        return b'{"id":%b,"position":%b}' % (id_ or position, position)


class Run(NamedTuple):
    """Requests that begin a read and repeat one before them, as the first of a `Publish`; the read goes on at `end`."""

    transport: Http1
    exchange: Exchange
    template: _Template
    messages: Sequence[Message]
    end: int

    def respond(self, outcome: Outcome, *, now_ms: int) -> None:
        """Answers each of them, from the outcome of all that were published with them, behind them."""
        answers = None
        if outcome.error is None and not outcome.refused and outcome.first is not None:
            answers = self.template.answers(self.messages, outcome.first, now_ms)
        self.transport.respond_to_run(self.exchange, answers, partial(self._responses, outcome), now_ms=now_ms)

    def _responses(self, outcome: Outcome) -> list[Response]:
        stored = Stored.of(outcome, 0, len(self.messages))
        found: list[Response] = []
        for index, message in enumerate(self.messages):
            refusal = stored.refused.get(index)
            one = Stored({}, {0: refusal}) if refusal is not None else Stored({0: stored.positions[index]}, {})
            found.append(self.template.response(message, one))
        return found


# The requests that wait for the outcome of a `Publish`, and the key that it is stored under.
Published: TypeAlias = tuple[list[Part | Run], IdempotencyKey | None]


class Repeats:
    """The request that others on a connection may repeat."""

    __slots__ = ("_first", "_learned", "_options", "_template", "_transport")

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._template: _Template | None = None
        self._transport: Http1 | None = None
        self._learned = 0
        self._first: Exchange | None = None  # of the request that begins this read; None: it is within one, or in a run

    def follow(self, transport: object) -> None:
        """Begins with another transport; takes nothing where it is not that of HTTP/1.1, or the connection is gone."""
        self._template = self._first = None
        self._transport = transport if isinstance(transport, Http1) else None

    def singles(self, data: bytes, now_ms: int) -> Sequence[Single]:
        """Returns the messages of a read that is a few such requests, while the transport knows of none in flight."""
        template, transport = self._template, self._transport
        if template is None or transport is None or not transport.quiet:
            return ()
        singles = template.singles(data, now_ms)
        if singles:
            self._learned = 0
            transport.passed()
        return singles

    def run(self, data: bytes, now_ms: int, *, waits: bool) -> Run | None:
        """Returns such requests that begin a read; None where there are none.

        `waits`: a request before them waits for its turn, its sender or an answer of the gateway.
        """
        template, transport = self._template, self._transport
        if transport is None or not transport.between_requests:
            self._first = None
            return None
        self._first = transport.next_exchange
        if template is None or waits:
            return None
        messages: list[Message] = []
        end = 0
        while (found := template.match(data, end, now_ms)) is not None:
            message, end = found
            messages.append(message)
        if not messages:
            return None
        self._learned, self._first = 0, None
        return Run(transport, transport.open_run(len(messages)), template, messages, end)

    def learn(self, data: bytes, effects: Sequence[Effect], published: Mapping[Token, Published]) -> None:
        """Takes apart the request that has begun the read `data`, where it is published by one of the effects."""
        first, options = self._first, self._options
        effect = next((effect for effect in effects if isinstance(effect, Publish)), None)
        if effect is None or first is None or self._learned >= LEARNED_MAX:
            return
        (part, *_), key = published[effect.token]
        if (
            not isinstance(part, Part)
            or part.exchange != first
            or part.size != 1
            or key is not None
            or options.cors_origins
            or options.property_headers
            or options.event_routes
            or 0 < options.compress_bytes_min <= ANSWER_BYTES_MAX
        ):
            return
        self._learned += 1
        self._template = _template(data, effect, part, options) or self._template


def _template(data: bytes, effect: Publish, part: Part, options: HttpOptions) -> _Template | None:
    """Returns a template of a request; None where more may change than that, or its message is more than one row."""
    message, who, request = effect.messages[part.start], effect.who, part.request
    end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    names = [name for name, _ in request.headers]
    event = b"ce-specversion" in names
    if (
        end < 0
        or len(data) - end - 4 < len(request.body)
        or who is None
        or data.count(b"\n", 0, end) != data.count(b"\r\n", 0, end)
        or not data.startswith(b"POST ")
        or names.count(LENGTH) != 1
        or any(names.count(name) > 1 for name in _CHANGING)
        or not _NEVER_REPEATED.isdisjoint(names)
        or (TRACE in names and b"ce-traceparent" in names)
        or (TIME in names and not event)
        or (request.get(b"content-type") or "").lower().startswith(_STRUCTURED)
        or message.qos != 1
        or message.retain
        or message.key is not None
        or message.deliver_at_ms is not None
        or message.expires_at_ms is not None
    ):
        return None
    first, *lines = data[:end].split(b"\r\n")
    if not first.endswith(b" HTTP/1.1"):
        return None
    pieces: list[tuple[bytes, bytes]] = []
    literal = first
    for line in lines:
        name, _, value = line.partition(b":")
        kind = next((kind for kind in _CHANGING if kind == name.lower()), None)
        literal += b"\r\n"
        if kind is None:
            literal += line
            continue
        value = value.strip(b" \t")
        if not line.endswith(value) or _PLAIN.fullmatch(value) is None:
            return None
        pieces.append((literal + line.removesuffix(value), kind))
        literal = b""
    if TIME in names and message.native is not None:
        event_native = {name: value for name, value in message.native[NATIVE].items() if name != "time"}
        message = msgspec.structs.replace(message, native={**message.native, NATIVE: event_native})
    response = part.reply(Stored({0: (_FIRST,)}, {}))
    if response is None:
        return None
    template = _Template([*pieces, (literal + b"\r\n\r\n", b"")], message, who, (request, response), options)
    id_ = encode_json(message.id) if message.id else b""
    return template if response.body == template.body(id_, _FIRST) else None
