"""The heads of requests and responses of HTTP/2, and those that other requests on their connection repeat."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from hyperframe.frame import DataFrame, HeadersFrame

from adapters.http.wire.http2.guard import (
    FLAG_END_HEADERS,
    FLAG_END_STREAM,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
)
from adapters.http.wire.http2.hpack_blocks import BlockDecoder, Fields
from adapters.http.wire.limits import body_refusal, head_refusal
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.request import CONTINUE, HttpRequest, expectations
from adapters.http.wire.response import Response, date_header, problem

FIELD_OVERHEAD_BYTES: Final = 32  # as SETTINGS_MAX_HEADER_LIST_SIZE counts a field (RFC 9113, 6.5.2)
HEADS_MAX: Final = 4  # that are remembered of a connection, each time by their blocks and by their names
BLOCK_BYTES_MAX: Final = 2_048  # of a block that is remembered
WHOLE_FRAMES_MAX: Final = 64  # frames of DATA of a request that passes h2 by: 1 MiB in full ones
HEAD_BYTES_MAX: Final = 4_096  # of a head that is remembered

_Fields: TypeAlias = Sequence[tuple[bytes, bytes]]
_Names: TypeAlias = tuple[tuple[bytes, bytes | None], ...]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_DATA, _HEADERS = DataFrame.type, HeadersFrame.type
_WHOLE_HEAD: Final = frozenset({FLAG_END_HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM})
_RESERVED: Final = 127  # the greatest first byte of a stream's number: its first bit is reserved (RFC 9113, 4.1)
_PATHS: Final = (b"/", b"*")  # "*" is for OPTIONS, which `HttpRequest.check` looks at
_SCHEMES: Final = frozenset({b"http", b"https"})
_LENGTH: Final = b"content-length"
# Fields that are sound for more reasons than the characters of their values (RFC 9113, 8.2.2 and 8.3.1).
_SAME: Final = frozenset({b":method", b":scheme", b":authority", b":protocol", b"host", b"te", b"expect"})
_SHAPES: Final = {b":path": re.compile(rb"/[!-~]*"), _LENGTH: re.compile(rb"[0-9]{1,15}")}
_VALUE: Final = re.compile(
    rb"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?"
)  # RFC 9113, 8.2.1, and no controls


class H2Head:
    """The fields of a request that h2 has found sound, and their meaning."""

    __slots__ = ("expected", "fields", "headers", "length_bytes", "method", "scheme", "size_bytes", "target")

    def __init__(self, fields: Iterable[tuple[bytes, bytes]]) -> None:
        self.fields = tuple(fields)
        values = dict(self.fields)
        length = values.get(_LENGTH)
        self.length_bytes = int(length) if length is not None else None  # h2 has checked that it is a number
        self.method = values.get(b":method", b"").decode("latin-1")
        self.target = values.get(b":path", b"")
        self.scheme = values.get(b":scheme", b"").lower()
        self.expected = expectations(self.fields) if b"expect" in values else frozenset()
        self.headers = [field for field in self.fields if not field[0].startswith(b":")]
        if b":authority" in values and b"host" not in values:
            self.headers.append((b"host", values[b":authority"]))
        self.size_bytes = len(self.target) + FIELD_OVERHEAD_BYTES * len(self.headers)
        self.size_bytes += sum([len(name) + len(value) for name, value in self.headers])

    def refusal(self, options: HttpOptions) -> Response | None:
        """Returns the refusal of a head that is too large, or whose body is, or one that HTTP/1.1 would refuse, too."""
        too_large = head_refusal(
            options,
            target_bytes=len(self.target),
            size_bytes=self.size_bytes,
            fields_count=len(self.headers),
        )
        refusal = too_large or self._target_refusal() or self._expectation_refusal()
        if refusal is None and (self.length_bytes or 0) > options.max_body_bytes:
            return body_refusal(options)
        if refusal is None and self.method == "CONNECT":  # the client ends such a request only after the answer
            return problem(501, "this server is not a proxy")
        return refusal

    def _target_refusal(self) -> Response | None:
        """Returns the refusal of a path that is none (RFC 9113, 8.3.1), and of a scheme that is not spoken."""
        if self.method == "CONNECT" or (self.target.startswith(_PATHS) and self.scheme in _SCHEMES):
            return None
        return problem(400, "the request target is no path, nor a URI of http or https")

    def _expectation_refusal(self) -> Response | None:
        if self.expected <= {CONTINUE}:
            return None
        return problem(417, "expect: only 100-continue is known", attribute="expect")

    @property
    def expects_continue(self) -> bool:
        """Returns whether the client waits to be told that the body may come (RFC 9110, 10.1.1)."""
        return CONTINUE in self.expected

    def request(self, body: bytes) -> HttpRequest:
        """Returns the request with this body."""
        return HttpRequest(method=self.method, target=self.target, headers=self.headers, body=body)


NO_HEAD: Final = H2Head(())  # of a request that is refused


def response_fields(response: Response, extra: Iterable[tuple[bytes, bytes]], now_ms: int) -> Fields:
    """Returns the fields of a response, those that its framing adds included."""
    date = date_header(now_ms // 1000)
    return ((b":status", b"%d" % response.status), (b"date", date), *response.headers, *extra)


class WholeRequest(NamedTuple):
    """The frames of a request that is all there: one HEADERS, and DATA where it has a body."""

    stream_id: int
    block: bytes
    body: bytes
    end: int  # the place behind them


def whole_request(data: bytes, at: int) -> WholeRequest | None:
    """Returns the request whose frames begin at a place of a read; None where others do, or some are not there yet.

    None, too, where its body is in many frames: they are looked at again as long as the last one is not there.
    """
    size = len(data)
    begins = at + FRAME_HEADER_BYTES
    if begins > size or data[at + 3] != _HEADERS or data[at + 4] not in _WHOLE_HEAD:
        return None
    stream, ended = data[at + 5 : begins], data[at + 4] & FLAG_END_STREAM
    end = begins + int.from_bytes(data[at : at + 3], "big")
    block = data[begins:end]
    if end > size or len(block) > BLOCK_BYTES_MAX or stream[0] > _RESERVED:
        return None
    parts: list[bytes] = []
    while not ended:
        begins = end + FRAME_HEADER_BYTES
        if begins > size or data[end + 3] != _DATA or data[end + 5 : begins] != stream:
            return None
        ended = data[end + 4]  # the flags: no other is taken
        at, end = end, begins + int.from_bytes(data[end : end + 3], "big")
        if end > size or end - begins > FRAME_BYTES_MAX or ended > FLAG_END_STREAM or not (ended or end > begins):
            return None
        parts.append(data[begins:end])
        if len(parts) > WHOLE_FRAMES_MAX:
            return None
    return WholeRequest(int.from_bytes(stream, "big"), block, b"".join(parts), end)


class RepeatedHeads:
    """The heads that h2 has found sound on a connection: by their blocks, and by the names of their fields."""

    __slots__ = ("_by_block", "_by_names", "_decoder", "_options")

    def __init__(self, decoder: BlockDecoder, options: HttpOptions) -> None:
        self._decoder, self._options = decoder, options
        self._by_block: dict[bytes, tuple[int, H2Head]] = {}  # and how often the table had changed
        self._by_names: dict[_Names, H2Head] = {}

    def learn(self, head: H2Head) -> None:
        """Remembers a head of the block that was decoded last, which h2 has found sound, and nothing refuses."""
        if head.method == "CONNECT" or head.expected or head.size_bytes > HEAD_BYTES_MAX:
            return
        names = _names(head.fields)
        if names.count((_LENGTH, None)) > 1:  # they have to be the same (RFC 9110, 8.6)
            return
        _remember(self._by_names, names, head)
        if self._decoder.block:
            _remember(self._by_block, self._decoder.block, (self._decoder.changes, head))

    def find(self, block: bytes) -> H2Head | None:
        """Returns the head that a block stands for, where it differs from one before it by plain values alone.

        The decoder has decoded the block then, or knows it: h2 must not, or has to get the same.
        """
        known = self._by_block.get(block)
        if known is not None and known[0] == self._decoder.changes:
            _remember(self._by_block, block, known)
            return known[1]
        if not self._by_names:
            return None
        fields = tuple(self._decoder.ahead(block))
        other = self._by_names.get(_names(fields))
        if other is None or not _alike(fields, other.fields):
            return None
        head = H2Head(fields)
        if head.size_bytes > HEAD_BYTES_MAX or head.refusal(self._options) is not None:
            return None
        self.learn(head)
        return head

    def clear(self) -> None:
        """Forgets them."""
        self._by_block.clear()
        self._by_names.clear()


def _names(fields: _Fields) -> _Names:
    """Returns the names of fields, with the values of those that mean more than their characters."""
    return tuple([(name, value if name in _SAME else None) for name, value in fields])


def _remember(heads: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    heads.pop(key, None)
    if len(heads) >= HEADS_MAX:
        del heads[next(iter(heads))]
    heads[key] = value


def _alike(fields: _Fields, others: _Fields) -> bool:
    """Returns whether fields of the same names differ by plain values alone."""
    for (name, value), (_, other) in zip(fields, others, strict=True):
        if value != other and _SHAPES.get(name, _VALUE).fullmatch(value) is None:
            return False
    return True
