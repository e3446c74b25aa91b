"""Content codings of bodies (RFC 9110, 8.4.1): gzip, deflate, zstd and br, decoded up to a limit, and encoded."""

import zlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import zstandard

from adapters.http.wire.request import HttpError, HttpRequest, qualities
from adapters.http.wire.response import Response

try:
    import brotli
except ImportError:  # it is an extra: without it br is no coding that is read or written
    brotli = None

CODINGS: Final = b"deflate, gzip, zstd" if brotli is None else b"br, deflate, gzip, zstd"
CODINGS_COUNT_MAX: Final = 2  # of one body, one within the other
_WINDOW_BYTES_MAX: Final = 8 << 20  # of zstd: the largest that RFC 9659 lets a decoder require
_PIECE_BYTES: Final = 64  # of zstd, decoded at a time
_INFLATED_BYTES: Final = 64 << 10  # of gzip, at a time: zlib copies what is behind a member
_PARTS_MAX: Final = 1_024  # members of gzip, frames of zstd: each takes some us, and has no less than 9 bytes
_GZIP_LEVEL, _ZSTD_LEVEL, _BROTLI_QUALITY = 4, 3, 4
# Types that are worth compressing: texts that we write ourselves, and that have no validator of their exact bytes.
_COMPRESSIBLE: Final = (b"application/json", b"application/problem+json", b"application/cloudevents")
_VARY: Final = (b"vary", b"accept-encoding")


# ---- requests


def decoded(request: HttpRequest, bytes_max: int) -> bytes:
    """Returns a request's body without its content codings.

    Raises `HttpError`: 415 for a coding that is not known here, 400 for a body that is not in it, 413 for one that has
    more than `bytes_max` without it.
    """
    said = request.get(b"content-encoding")
    if said is None:
        return request.body
    names = [name for part in said.lower().split(",") if (name := part.strip()) not in {"", "identity"}]
    if len(names) > CODINGS_COUNT_MAX:
        raise HttpError(400, f"content-encoding: at most {CODINGS_COUNT_MAX} are read", attribute="content-encoding")
    body = request.body
    for name in reversed(names):  # in the order in which they were applied
        decode = _DECODERS.get(name)
        if decode is None:
            accepted = (b"accept-encoding", CODINGS)
            detail = f"content-encoding: {name[:64]} is not read here; {CODINGS.decode()} are"
            raise HttpError(415, detail, headers=(accepted,), attribute="content-encoding")
        try:
            body = decode(body, bytes_max)
        except (zlib.error, zstandard.ZstdError, EOFError, *_BROTLI_ERRORS) as error:
            raise HttpError(400, f"content-encoding: the body is not {name}", attribute="content-encoding") from error
        if len(body) > bytes_max:
            raise HttpError(413, f"the body has more than {bytes_max} bytes without its content-encoding")
    return body


def _check_count(parts: int) -> None:
    if parts > _PARTS_MAX:
        detail = f"content-encoding: at most {_PARTS_MAX} members or frames are read"
        raise HttpError(400, detail, attribute="content-encoding")


def _inflated(body: bytes, bytes_max: int, window_bits: int) -> bytes:
    """Returns at most one byte more than the limit; the members of gzip one behind the other."""
    made = bytearray()
    inflater = None
    at = count = 0
    while at < len(body) and len(made) <= bytes_max:
        if inflater is None:
            count += 1
            _check_count(count)
            inflater = zlib.decompressobj(window_bits)
        piece = body[at : at + _INFLATED_BYTES]
        made += inflater.decompress(piece, bytes_max + 1 - len(made))
        at += len(piece) - len(inflater.unused_data)
        if inflater.eof:
            if window_bits <= zlib.MAX_WBITS and at < len(body):
                raise EOFError  # deflate has one stream
            inflater = None
    if inflater is not None and len(made) <= bytes_max:
        raise EOFError
    return bytes(made)


def _gunzipped(body: bytes, bytes_max: int) -> bytes:
    return _inflated(body, bytes_max, zlib.MAX_WBITS + 16)


def _deflated(body: bytes, bytes_max: int) -> bytes:
    return _inflated(body, bytes_max, zlib.MAX_WBITS)


def _unzstd(body: bytes, bytes_max: int) -> bytes:
    """Returns little more than the limit at most: a piece of this size has at most 16 blocks of 128 KiB."""
    made = bytearray()
    frame = None
    at = count = 0
    while at < len(body) and len(made) <= bytes_max:
        if frame is None:
            count += 1
            _check_count(count)
            frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).decompressobj()
        made += frame.decompress(body[at : at + _PIECE_BYTES])
        at += _PIECE_BYTES
        if frame.eof:
            at = min(at, len(body)) - len(frame.unused_data)
            frame = None
    if frame is not None and len(made) <= bytes_max:
        raise EOFError
    return bytes(made)


def _unbrotli(body: bytes, bytes_max: int) -> bytes:
    """Returns little more than the limit at most: the library's last block."""
    made = bytearray()
    decompressor = brotli.Decompressor()
    given = body
    while not decompressor.is_finished() and len(made) <= bytes_max:
        piece = decompressor.process(given, output_buffer_limit=bytes_max + 1 - len(made))
        made += piece
        given = b""
        if not piece and decompressor.can_accept_more_data() and not decompressor.is_finished():
            raise EOFError
    return bytes(made)


_BROTLI_ERRORS: Final = () if brotli is None else (brotli.error,)
_DECODERS: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _gunzipped,
    "x-gzip": _gunzipped,
    "deflate": _deflated,
    "zstd": _unzstd,
    **({} if brotli is None else {"br": _unbrotli}),
}


# ---- responses


def compressed(request: HttpRequest, response: Response, bytes_min: int) -> Response:
    """Returns a response as the client accepts it (RFC 9110, 12.5.3): texts of `bytes_min` and more are compressed."""
    body = response.body
    if not bytes_min or len(body) < bytes_min:
        return response
    names = {name for name, _ in response.headers}
    kind = next((value for name, value in response.headers if name == b"content-type"), b"")
    if not kind.startswith(_COMPRESSIBLE) or b"content-encoding" in names or b"etag" in names:
        return response
    headers = [*response.headers, _VARY]
    accepted = qualities(request.get(b"accept-encoding") or "")
    any_ = accepted.get("*", 0.0)
    coding = max(_ENCODERS, key=lambda name: accepted.get(name, any_))  # of equals the first
    weight = accepted.get(coding, any_)
    if weight > 0 and weight >= accepted.get("identity", 0.0):
        body = _ENCODERS[coding](body)
        headers.append((b"content-encoding", coding.encode()))
    return msgspec.structs.replace(response, headers=headers, body=body)


def _gzip(body: bytes) -> bytes:
    deflater = zlib.compressobj(_GZIP_LEVEL, wbits=zlib.MAX_WBITS + 16)
    return deflater.compress(body) + deflater.flush()


def _zstd(body: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)


def _brotli(body: bytes) -> bytes:
    made: bytes = brotli.compress(body, quality=_BROTLI_QUALITY)
    return made


# Ordered by the bytes that they save for the time that they take.
_ENCODERS: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "zstd": _zstd,
    **({} if brotli is None else {"br": _brotli}),
    "gzip": _gzip,
}
