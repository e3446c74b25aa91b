"""Exchanges of HTTP/1.1: a statement of RFC 9110 or RFC 9112, bytes that try it, and how they have to be answered."""

import re
from typing import NamedTuple

TARGET = b"/topics/wire/a"
GET = b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST " + TARGET + b" HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [A-Z]")


def statuses(out: bytes) -> tuple[int, ...]:
    """Returns the statuses of responses, interim ones too, whose bodies hold no status line."""
    return tuple([int(status) for status in _STATUS.findall(out)])


class Exchange(NamedTuple):
    """Bytes of a client, the statuses that answer them, and whether the connection ends behind them."""

    statement: str
    sent: bytes
    statuses: tuple[int, ...]
    ends: bool = False


def _head(*lines: bytes, first: bytes = b"GET /topics HTTP/1.1") -> bytes:
    return b"\r\n".join([first, *lines]) + b"\r\n\r\n"


EXCHANGES = [
    Exchange("9112 2.2: an empty line before a request is passed over", b"\r\n" + GET + b"\r\n\r\n" + GET, (200, 200)),
    Exchange("9112 2.2: a bare CR in a field is refused", _head(b"Host: localhost", b"X: a\rb"), (400,), True),
    Exchange(
        "9112 2.2: a bare CR in a request line is refused",
        _head(b"Host: localhost", first=b"GET /\r HTTP/1.1"),
        (400,),
        True,
    ),
    Exchange("9112 2.2: whitespace before the first field is refused", _head(b" Host: localhost"), (400,), True),
    Exchange(
        "9112 2.2: a line of whitespace before the first field is refused",
        _head(b" ", b"Host: localhost"),
        (400,),
        True,
    ),
    Exchange(
        "9112 2.3: the version's name is in capitals", _head(b"Host: localhost", first=b"GET / http/1.1"), (400,), True
    ),
    Exchange(
        "9112 2.3: a version has one digit on each side",
        _head(b"Host: localhost", first=b"GET / HTTP/1.10"),
        (400,),
        True,
    ),
    Exchange(
        "9110 2.5: a higher minor version is read as 1.1",
        _head(b"Host: localhost", first=b"GET /topics HTTP/1.3"),
        (200,),
    ),
    Exchange(
        "9110 15.6.6: a major version that is not spoken",
        _head(b"Host: localhost", first=b"GET / HTTP/3.0"),
        (505,),
        True,
    ),
    Exchange(
        "9112 3: no whitespace inside of a target", _head(b"Host: localhost", first=b"GET /a b HTTP/1.1"), (400,), True
    ),
    Exchange(
        "9112 3: nothing follows the version", _head(b"Host: localhost", first=b"GET /topics HTTP/1.1 "), (400,), True
    ),
    Exchange(
        "9112 3: a target that is too long",
        _head(b"Host: localhost", first=b"GET /" + b"a" * 70_000 + b" HTTP/1.1"),
        (414,),
        True,
    ),
    Exchange(
        "9112 3: a method that is not implemented",
        _head(b"Host: localhost", first=b"BREW /topics HTTP/1.1"),
        (501,),
        True,
    ),
    Exchange(
        "9110 9.1: methods are case-sensitive", _head(b"Host: localhost", first=b"get /topics HTTP/1.1"), (501,), True
    ),
    Exchange("9112 3.2: a request of 1.1 has a Host", _head(), (400,), True),
    Exchange("9112 3.2: one Host and no more", _head(b"Host: localhost", b"Host: localhost"), (400,), True),
    Exchange("9112 3.2: a Host that is none", _head(b"Host: h/x"), (400,)),
    Exchange("9112 3.2: an empty Host may be", _head(b"Host:"), (200,)),
    Exchange("9112 3.2: a request of 1.0 needs no Host", b"GET /topics HTTP/1.0\r\n\r\n", (200,), True),
    Exchange("9112 3.2: a target has no fragment", _head(b"Host: localhost", first=b"GET /topics#a HTTP/1.1"), (400,)),
    Exchange(
        "9112 3.2.2: an absolute target is taken",
        _head(b"Host: localhost", first=b"GET http://x/topics HTTP/1.1"),
        (200,),
    ),
    Exchange(
        "9110 4.2.4: but not with a user", _head(b"Host: localhost", first=b"GET http://u@x/topics HTTP/1.1"), (400,)
    ),
    Exchange("9110 4.2.1: and with a host", _head(b"Host: localhost", first=b"GET http:///topics HTTP/1.1"), (400,)),
    Exchange(
        "9110 4.2.1: a port is no host", _head(b"Host: localhost", first=b"GET http://:80/topics HTTP/1.1"), (400,)
    ),
    Exchange(
        "9110 4.2.3: an absolute target without a path is * for OPTIONS",
        _head(b"Host: localhost", first=b"OPTIONS http://localhost HTTP/1.1"),
        (204,),
    ),
    Exchange("9112 3.2.3: CONNECT is a proxy's", _head(b"Host: h:1", first=b"CONNECT h:1 HTTP/1.1"), (501,), True),
    Exchange("9112 3.2.4: * is for OPTIONS", _head(b"Host: localhost", first=b"OPTIONS * HTTP/1.1"), (204,)),
    Exchange("9112 3.2.4: and for nothing else", _head(b"Host: localhost", first=b"GET * HTTP/1.1"), (400,)),
    Exchange("9112 5: a field has a name", _head(b"Host: localhost", b": x"), (400,), True),
    Exchange("9110 5.1: names are case-insensitive", _head(b"hOST: h"), (200,)),
    Exchange("9112 5.1: no whitespace before the colon", _head(b"Host: localhost", b"X : a"), (400,), True),
    Exchange("9112 5.1: whitespace around a value is no part of it", _head(b"Host: \t h \t"), (200,)),
    Exchange("9112 5.2: folded lines are refused", _head(b"Host: localhost", b"X: a", b" b"), (400,), True),
    Exchange("9110 5.5: NUL in a value is refused", _head(b"Host: localhost", b"X: a\0b"), (400,), True),
    Exchange("9110 5.5: bytes above ASCII are opaque", _head(b"Host: localhost", b"X: \xff\x80"), (200,)),
    Exchange("6585 5: too large a head", _head(b"Host: localhost", b"X: " + b"a" * 70_000), (431,), True),
    Exchange("6585 5: too many fields", _head(b"Host: localhost", *[b"a:"] * 1_001), (431,), True),
    Exchange("9112 6.1: chunked bodies", CHUNKED + b"1\r\nx\r\n0\r\n\r\n" + GET, (201, 200)),
    Exchange("9112 6.1: codings are case-insensitive", CHUNKED.replace(b"chunked", b"CHUNKED") + b"0\r\n\r\n", (201,)),
    Exchange("9112 6.1: a coding that is not known", CHUNKED.replace(b"chunked", b"gzip, chunked"), (501,), True),
    Exchange("9112 6.1: chunked is once, and last", CHUNKED.replace(b"chunked", b"chunked, gzip"), (400,), True),
    Exchange("9112 6.1: chunked twice", CHUNKED.replace(b"chunked", b"chunked, chunked"), (400,), True),
    Exchange(
        "9112 6.1: a coding in 1.0 is at fault", CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", (400,), True
    ),
    Exchange("9112 6.3: a length beside a coding", CHUNKED[:-2] + b"Content-Length: 3\r\n\r\nabc", (400,), True),
    Exchange("9112 6.3: lengths that differ", POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", (400,), True),
    Exchange("9112 6.3: a length that is no number", POST + b"Content-Length: x\r\n\r\n", (400,), True),
    Exchange("9110 8.6: a length with a sign", POST + b"Content-Length: +1\r\n\r\nx", (400,), True),
    Exchange("9110 8.6: a length beyond 64 bits", POST + b"Content-Length: 99999999999999999999\r\n\r\n", (400,), True),
    Exchange("9112 6.3: neither is no body", POST + b"\r\n" + GET, (201, 200)),
    Exchange("9110 15.5.14: too large a body", POST + b"Content-Length: 999999999\r\n\r\n", (413,), True),
    Exchange("9112 7.1: a size is hexadecimal", CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n", (400,), True),
    Exchange("9112 7.1: a size has no sign", CHUNKED + b"-1\r\nx\r\n0\r\n\r\n", (400,), True),
    Exchange("9112 7.1: a size may have zeros before it", CHUNKED + b"0001\r\nx\r\n000\r\n\r\n", (201,)),
    Exchange("9112 7.1: a size beyond 64 bits", CHUNKED + b"f" * 17 + b"\r\nx\r\n", (400,), True),
    Exchange("9112 7.1: a chunk is as long as it says", CHUNKED + b"1\r\nxy\r\n0\r\n\r\n", (400,), True),
    Exchange("9112 7.1: lines of chunks end with CRLF", CHUNKED + b"1\nx\n0\n\n", (400,), True),
    Exchange(
        "9112 7.1.1: extensions are passed over", CHUNKED + b'1;a;b=c;d="e;f"\r\nx\r\n0;g\r\n\r\n' + GET, (201, 200)
    ),
    Exchange("9112 7.1.1: too many extensions", CHUNKED + (b"1;" + b"e" * 9_000 + b"\r\nx\r\n") * 2, (400,), True),
    Exchange("9112 7.1.2: trailers are passed over", CHUNKED + b"0\r\nX-Sum: 1\r\nHost: x\r\n\r\n" + GET, (201, 200)),
    Exchange(
        "9112 7.1.2: trailers say nothing of the framing", CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n", (400,), True
    ),
    Exchange("9112 9.3: requests may follow each other", GET * 3, (200, 200, 200)),
    Exchange("9112 9.6: close is the last", _head(b"Host: localhost", b"Connection: x, Close") + GET, (200,), True),
    Exchange(
        "9112 9.3: 1.0 goes on where it asks for it", b"GET /topics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", (200,)
    ),
    Exchange("9110 9.3.2: HEAD has no body", b"HEAD" + GET[3:] + GET, (200, 200)),
    Exchange("9110 9.3.8: TRACE is not here", b"TRACE" + GET[3:], (405,)),
    Exchange("9110 10.1.1: an expectation of 1.1", POST + b"Expect: 100-Continue\r\nContent-Length: 1\r\n\r\n", (100,)),
    Exchange(
        "9110 10.1.1: nothing is continued that has no content",
        POST + b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n",
        (201,),
    ),
    Exchange(
        "9110 10.1.1: a status that the head decides comes at once: 404",
        POST.replace(TARGET, b"/nothing") + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n",
        (404,),
        True,
    ),
    Exchange(
        "9110 10.1.1: a status that the head decides comes at once: 405",
        POST.replace(b"POST", b"PATCH") + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
        (405,),
        True,
    ),
    Exchange("9110 10.1.1: another expectation", POST + b"Expect: x\r\nContent-Length: 1\r\n\r\n", (417,), True),
    Exchange(
        "9110 7.8: an upgrade that is not known is passed over",
        _head(b"Host: localhost", b"Upgrade: x", b"Connection: upgrade"),
        (200,),
    ),
    Exchange(
        "9110 11.6.1: credentials of a scheme that is not known",
        _head(b"Host: localhost", b"Authorization: X y"),
        (401,),
    ),
    Exchange("9110 15.5.6: a method that is not for this", b"DELETE" + GET[3:], (405,)),
    Exchange(
        "9110 15.5.16: a coding of JSON that is not known",
        b"POST /kv HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: x\r\nContent-Length: 2\r\n\r\n{}",
        (415,),
    ),
]
