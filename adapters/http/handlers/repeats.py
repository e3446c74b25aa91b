"""Requests that repeat one before them on their connection but for id, time, length and body, as a device's mostly do.

The head of a request that was published is taken apart once, into the bytes that stay and the values that change. A
read that is one request with the same bytes where they stay is a message without being parsed. All others are parsed.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from adapters.cloudevents import NATIVE, STRUCTURED_JSON, canonical_ms, parse_ms
from adapters.http.handlers.actions import Part, Stored
from adapters.http.wire.h1 import Http1
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.response import Response, date_header, encode_json, reason_phrase
from gateway.domain.idempotency import IdempotencyKey
from gateway.domain.principal import Principal
from gateway.port.adapter import Publish
from gateway.port.single import Single
from store.api.message import Message
from store.format.frame import LogOffset, Position

HEAD_BYTES_MAX: Final = 2_048  # a larger head is not kept
VALUE_BYTES_MAX: Final = 256  # of a value that changes
ANSWER_BYTES_MAX: Final = 1_000  # of a body: an id, which JSON may make twice as long, and a place
LEARNED_MAX: Final = 4  # templates of a connection that no request has repeated; then no more are made

LENGTH: Final = b"content-length"
ID: Final = b"ce-id"
TIME: Final = b"ce-time"
TRACE: Final = b"traceparent"
_CHANGING: Final = frozenset({LENGTH, ID, TIME, TRACE})
_ONCE_ALONE: Final = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"idempotency-key"})
_STRUCTURED: Final = STRUCTURED_JSON.partition("+")[0]
# Of visible ASCII, all that stands for itself in an attribute's value (CloudEvents HTTP binding 1.0.2, 3.1.3.2).
_PLAIN: Final = re.compile(rb"[!#$&-~]+")
_FIRST: Final = Position(LogOffset(0), 0)


class Repeats:
    """The request that others on a connection may repeat."""

    __slots__ = ("_learned", "_options", "_template", "_transport")

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._template: _Template | None = None
        self._transport: Http1 | None = None
        self._learned = 0

    def single(self, data: bytes, now_ms: int) -> Single | None:
        """Returns the message of a read that is one such request and nothing else, while no other is in flight."""
        template, transport = self._template, self._transport
        if template is None or transport is None or not transport.quiet:
            return None
        single = template.single(data, now_ms)
        if single is not None:
            self._learned = 0
        return single

    def learn(
        self,
        data: bytes,
        effect: Publish,
        parts: Sequence[Part],
        key: IdempotencyKey | None,
        transport: Http1,
    ) -> None:
        """Takes apart a request that a read has brought whole and alone, and that is published with nothing else."""
        options = self._options
        if (
            self._learned >= LEARNED_MAX
            or len(effect.messages) != 1
            or len(parts) != 1
            or key is not None
            or options.cors_origins
            or options.property_headers
            or options.event_routes
            or 0 < options.compress_bytes_min <= ANSWER_BYTES_MAX
        ):
            return
        self._learned += 1
        self._template, self._transport = _template(data, effect, parts[0], options), transport

    def forget(self) -> None:
        """Takes nothing more: the connection is gone, or goes on in another version."""
        self._template = self._transport = None


class _Template:
    """A request whose changing values are left out.

    `pieces` are the bytes before each of them, and which it is; the last are those behind all.
    """

    __slots__ = ("_body_bytes_max", "_head_bytes_max", "_headers", "_model", "_pieces", "_status", "_tail", "_who")

    def __init__(
        self,
        pieces: list[tuple[bytes, bytes]],
        model: Message,
        who: Principal,
        response: Response,
        options: HttpOptions,
    ) -> None:
        *self._pieces, (self._tail, _) = pieces
        self._model = model
        self._who = who
        self._status = b"HTTP/1.1 %d %b\r\ndate: " % (response.status, reason_phrase(response.status).encode())
        self._headers = b"".join([b"\r\n%b: %b" % header for header in response.headers]) + b"\r\ncontent-length: "
        self._body_bytes_max = options.max_body_bytes
        self._head_bytes_max = options.max_header_bytes

    def single(self, data: bytes, now_ms: int) -> Single | None:  # noqa: PLR0912 - one loop: a call for each value costs
        """Returns the message of a read; None where it is anything else than such a request."""
        # Once a request, 3.5 us: 1 for the values, 1 for `Message` and `Single`.
        who, model = self._who, self._model
        id_, time_ms, native, traceparent = "", now_ms, model.native, model.traceparent
        at, length = 0, -1
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
        if len(data) - at != length or length > self._body_bytes_max or at > self._head_bytes_max:
            return None
        if who.expires_at_ms is not None and who.expires_at_ms <= now_ms:
            return None
        message = Message(
            model.address,
            data[at:],
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
        return Single(message, encode_json(id_) if id_ else b"", who, self.answer, data)

    def answer(self, single: Single, place: Position, now_ms: int) -> bytes:
        """Returns the response to such a request whose message is stored at a place."""
        body = self.body(single.acknowledgement, place)
        return b"%b%b%b%d\r\n\r\n%b" % (self._status, date_header(now_ms // 1000), self._headers, len(body), body)

    @staticmethod
    def body(id_: bytes, place: Position) -> bytes:
        """Returns the response's body; the position is the id where the request says none."""
        position = b'"%x.%x"' % place
        return b'{"id":%b,"position":%b}' % (id_ or position, position)


def _template(data: bytes, effect: Publish, part: Part, options: HttpOptions) -> _Template | None:
    """Returns a template of a request; None where more may change than that, or its message is more than one row."""
    message, who, request = effect.messages[0], effect.who, part.request
    end = data.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
    names = [name for name, _ in request.headers]
    event = b"ce-specversion" in names
    if (
        end < 0
        or len(data) - end - 4 != len(request.body)
        or who is None
        or data.count(b"\n", 0, end) != data.count(b"\r\n", 0, end)
        or not data.startswith(b"POST ")
        or names.count(LENGTH) != 1
        or any(names.count(name) > 1 for name in _CHANGING)
        or not _ONCE_ALONE.isdisjoint(names)
        or (TRACE in names and b"ce-traceparent" in names)
        or (TIME in names and not event)
        or (message.content_type or "").lower().startswith(_STRUCTURED)
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
    template = _Template([*pieces, (literal + b"\r\n\r\n", b"")], message, who, response, options)
    id_ = encode_json(message.id) if message.id else b""
    return template if response.body == template.body(id_, _FIRST) else None
