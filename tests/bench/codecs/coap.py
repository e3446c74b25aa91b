"""CoAP messages: `adapters.coap.codec.wire` beside the codec of aiocoap."""

from aiocoap import Message
from aiocoap.message import Direction
from aiocoap.numbers.codes import Code
from aiocoap.numbers.types import Type

from adapters.coap.codec.registry import ACK, CHANGED, CON, CONTENT_FORMAT, POST, URI_PATH, URI_QUERY
from adapters.coap.codec.wire import Packet, decode, encode
from tests.bench.codecs.subject import Subject, Work

PATH = ("t", "telemetry", "site1", "dev42", "temp")
HEAD = b"\x40\x02\0\x01"  # CON POST, no token
BROKEN = {
    "a header of three bytes": HEAD[:3],
    "version 0": b"\0\x02\0\x01",
    "a token of 9 bytes": b"\x49\x02\0\x01" + bytes(9),
    "a token that is cut short": b"\x44\x02\0\x01\0",
    "an Empty message with a payload": b"\x40\0\0\x01\xffx",
    "an Empty message with a token": b"\x41\0\0\x01x",
    "a payload marker and no payload": HEAD + b"\xff",
    "an option's length of 15": HEAD + b"\xbfx",
    "an option's number delta of 15": HEAD + b"\xf1x",
    "an option that is cut short": HEAD + b"\xb5tel",
    "an option number over 65535": HEAD + b"\xe0\xff\xff",
}


def _request() -> bytes:
    options = [(URI_PATH, level.encode()) for level in PATH]
    options += [(CONTENT_FORMAT, b"\x32"), (URI_QUERY, b"qos=1")]
    return encode(Packet(type=CON, code=POST, mid=7, token=b"abcd", options=tuple(options), payload=b'{"value": 21.5}'))


def _answer() -> bytes:
    return encode(Packet(type=ACK, code=CHANGED, mid=7, token=b"abcd"))


def _aiocoap_answer() -> bytes:
    message = Message(code=Code.CHANGED, _mtype=Type.ACK, _mid=7, _token=b"abcd")
    message.direction = Direction.OUTGOING
    return message.encode()


def subject() -> Subject:
    """Returns the comparison."""
    data = _request()
    assert _aiocoap_answer() == _answer()
    readers = {"ours": decode, "aiocoap": Message.decode}
    works = [
        Work(f"read a POST of {len(data)} bytes, 7 options", 1, {k: _reading(v, data) for k, v in readers.items()}),
        Work("write its 2.04", 1, {"ours": _answer, "aiocoap": _aiocoap_answer}),
    ]
    return Subject(works, readers, BROKEN)


def _reading(read, data: bytes):
    return lambda: read(data)
