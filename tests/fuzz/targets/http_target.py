"""Fuzz targets of HTTP, and their loops: `python -m tests.fuzz.targets.http_target --inputs 1000000 --seed 7`.

`http1`, `http2` and `websocket` feed whole connections, one read an input, behind which a gateway answers and refuses
by chance: what they say has to be responses, frames or messages, none has the status 500, and behind its end a
connection says nothing. `body` gives compressed bodies to the decoders of their codings. A finding is found again by
its lot: `--seed 7 --lot 123 --inputs 10000`.
"""

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from random import Random

from hpack import Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from adapters.http import HttpOptions
from adapters.http.wire.coding import compressed, decoded
from adapters.http.wire.http2.guard import PREFACE
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.http.wire.response import Response
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Authenticate, Call, CancelTimer, Outcome
from gateway.port.reads import LastValue, LastValues, ListAddresses
from store.api.message import Message
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Found, Target, count, hex_of, single_inputs
from tests.support.http.http_driver import Gateway, request

EVENT = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}'
JSON = ("content-type", "application/json")
BINARY = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"), ("ce-x", "%C3%A9")]
ASKED: list[tuple[str, str, list[tuple[str, str]], bytes | None]] = [
    ("POST", "/topics/a/b?qos=1&key=k&expiry=5", [("ce-ext", "%20"), ("x-correlation-data", "eA==")], b"hello"),
    ("POST", "/topics/a", [("content-encoding", "gzip"), ("idempotency-key", "k1")], b"raw"),
    ("POST", "/events", BINARY, b"{}"),
    ("POST", "/events", [("content-type", "application/cloudevents+json; charset=utf-8")], EVENT),
    ("POST", "/events", [("content-type", "application/cloudevents-batch+json")], b"[" + EVENT + b"," + EVENT + b"]"),
    ("POST", "/events", [("content-type", "application/cloudevents+json"), ("content-encoding", "gzip")], b"\x1f\x8b"),
    ("GET", "/topics/a/b", [("accept", "application/cloudevents+json;q=0.5, */*"), ("if-none-match", '"x"')], None),
    ("GET", "/topics/a/%23?limit=5&after=a", [], None),
    ("GET", "/topics?prefix=a&limit=9", [("authorization", "Basic YWxpY2U6c2VjcmV0")], None),
    ("GET", "/messages?id=1&from=2026-11-23T02:45:00Z&wait=1&where=a%20%3D%201", [], None),
    ("GET", "/subscribe?filter=%23&where=size_bytes%20%3E%201", [("last-event-id", "1.0")], None),
    ("PUT", "/kv/a?ttl=5&ns=n", [("if-match", '"5"')], b"value"),
    ("POST", "/kv", [JSON], b'{"compare":[{"key":"a","revision":1}],"operations":[{"put":"a","value":"eA=="}]}'),
    ("GET", "/kv?prefix=a&watch&from=0", [], None),
    ("POST", "/groups/g/members", [JSON], b'{"topic":"t","strategy":"averaged","start":"earliest","ttl_s":10}'),
    ("POST", "/groups/g/members/m/commit", [JSON], b'{"generation":1,"offsets":{"0":5}}'),
    ("POST", "/subscriptions", [JSON], b'{"sink":"https://a.example/","protocol":"HTTP","filters":[{"sql":"id = 1"}]}'),
    ("OPTIONS", "/events", [("webhook-request-origin", "a"), ("origin", "http://b.example")], None),
    ("DELETE", "/timers/1-2", [("origin", "http://b.example")], None),
    ("HEAD", "/openapi.json", [("accept-encoding", "br;q=0, zstd, gzip")], None),
]
CHUNKED = [
    b"POST /topics/c HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
    b"POST /topics/c HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\nabc",
    b"GET /topics/c HTTP/1.0\r\n\r\n",
    b"GET /topics/a HTTP/1.1\r\nhost: h\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAMAAABk\r\n\r\n",
]
HTTP1 = [request(method, target, *headers, body=body) for method, target, headers, body in ASKED] + CHUNKED
UPGRADE = request(
    "GET",
    "/subscribe?filter=%23",
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ("sec-websocket-version", "13"),
    ("sec-websocket-protocol", "cloudevents.json"),
)
_MASK = b"\x01\x02\x03\x04"
_CAUSES = [cause for cause in Cause if cause is not Cause.DAMAGED]  # which has the status 500
_READS_MAX = 32  # of one connection


def _coded(coding: str, data: bytes) -> bytes:
    accepts = HttpRequest(method="GET", target=b"/", headers=[(b"accept-encoding", coding.encode())])
    return compressed(
        accepts, Response(status=200, headers=((b"content-type", b"application/json"),), body=data), 0
    ).body


CODINGS = {coding: [_coded(coding, data) for data in (EVENT, bytes(60_000), b"")] for coding in ("gzip", "zstd", "br")}
CODINGS["gzip"] += [gzip.compress(EVENT) + gzip.compress(b"x")]
CODINGS["deflate"] = [zlib.compress(EVENT), zlib.compress(bytes(60_000)), zlib.compress(EVENT)[2:-4]]
_DECODED_BYTES_MAX = 50_000
hurt = partial(lots.hurt, telling=b'\x00\x09\r\n :/?%;,="{}[]0159afGP#+\x7f\x80\xc3\xff')
hurt_frames = partial(lots.hurt, telling=b"\x00\x01\x02\x03\x04\x05\x08\x09\x0a\x7f\x80\x81\x82\x88\x8a\xfe\xff")


class FuzzGateway(Gateway):
    """A gateway that answers by chance."""

    def __init__(self, random: Random) -> None:
        self.random = random
        options = HttpOptions(cors_origins=("http://b.example",)) if not random.getrandbits(2) else None
        super().__init__(options, short=bool(random.getrandbits(1)))

    def answer_effect(self, call: Call) -> Outcome:
        """Answers what it knows, mostly; refuses the rest."""
        known = isinstance(call.request, Authenticate | LastValue | LastValues | CancelTimer | ListAddresses)
        if known and self.random.getrandbits(3):
            return super().answer_effect(call)
        return Outcome(error=Refusal(self.random.choice(_CAUSES), "by chance"))

    def happen(self) -> bytes:
        """Offers a message, or lets time pass."""
        chance = self.random.getrandbits(6)
        if self.closed or chance > 3:
            return b""
        if chance > 1:
            self.deliver([Message(address="a/b", body=b"1")])
        return self.tick(after_ms=40_000 if not chance else 100)

    def finish(self) -> bytes:
        """Ends the connection, which has to let go of everything."""
        out = b""
        if not self.closed:
            self.act(self.adapter.shutdown(now_ms=self.now_ms))
            out = self.adapter.take_output()
            for _ in range(4):
                out += self.tick(after_ms=40_000)
        assert self.closed
        assert self.adapter.deadline_ms() is None
        assert self.adapter.receive(HTTP1[0], now_ms=self.now_ms) == ()
        self.adapter.lost(now_ms=self.now_ms)
        return out


def _connections(first: bytes, reads: Callable[[Random], Iterator[bytes]], judge: Callable[[bytes], None]) -> Target:
    """Returns the target of whole connections, which begin with `first`; `judge` looks at all that comes back."""

    def target(random: Random, inputs: int, tally: dict[str, int]) -> None:
        said: list[bytes] = []
        done = connections = closed = 0
        try:
            while done < inputs:
                gateway, connections = FuzzGateway(random), connections + 1
                said = [first]
                out = gateway.feed(first) if first else b""
                for data in islice(reads(random), min(_READS_MAX, inputs - done)):
                    if gateway.closed:
                        break
                    done += 1
                    said.append(data)
                    cut = random.getrandbits(9) if random.getrandbits(1) else len(data)
                    for part in (data[:cut], data[cut:]):
                        if part and not gateway.closed:
                            out += gateway.feed(part)
                    out += gateway.happen()
                closed += gateway.closed
                judge(out + gateway.finish())
        except Exception as error:
            raise Found(" | ".join(one.hex(" ") for one in said)) from error
        count(tally, connections=connections, closed_by_us=closed)

    return target


def _of_http1(random: Random) -> Iterator[bytes]:
    while True:
        data = HTTP1[random.getrandbits(16) % len(HTTP1)]
        yield hurt(data, random) if not random.getrandbits(2) else data


def _judge_http1(out: bytes) -> None:
    if b"HTTP/1.1 101 " in out or b"text/event-stream" in out or b" 100 Continue" in out:
        assert b"HTTP/1.1 500 " not in out
        return
    head, _, _ = out.partition(b"\r\n")
    assert not out or head.startswith(b"HTTP/1.1 "), head
    assert b"HTTP/1.1 500 " not in out


def _frames_of(number: int, stream: int) -> bytes:
    """Returns the frames of a request on a stream."""
    method, target, headers, body = ASKED[number % len(ASKED)]
    fields = [(":method", method), (":scheme", "http"), (":authority", "h"), (":path", target), *headers]
    block = Encoder().encode(fields, huffman=stream % 3 == 0)
    ends = ["END_STREAM"] if body is None else []
    if stream % 8 == 1:
        cut = len(block) // 2
        made: list[Frame] = [HeadersFrame(stream, data=block[:cut], flags=ends)]
        made.append(ContinuationFrame(stream, data=block[cut:], flags=["END_HEADERS"]))
    else:
        made = [HeadersFrame(stream, data=block, flags=["END_HEADERS", *ends])]
    if body is not None:
        made.append(DataFrame(stream, data=body, flags=["END_STREAM"]))
    return b"".join(frame.serialize() for frame in made)


HTTP2 = [[_frames_of(number, 1 + 2 * n) for number in range(len(ASKED))] for n in range(_READS_MAX)]  # by stream
OTHERS = [
    SettingsFrame(0, settings={1: 100, 3: 10, 4: 70_000, 5: 20_000}).serialize(),
    SettingsFrame(0, flags=["ACK"]).serialize(),
    PingFrame(0, opaque_data=b"12345678").serialize(),
    WindowUpdateFrame(0, window_increment=1_000).serialize(),
    WindowUpdateFrame(1, window_increment=1_000).serialize(),
    RstStreamFrame(3, error_code=8).serialize(),
    PriorityFrame(5, depends_on=0, stream_weight=5).serialize(),
    DataFrame(1, data=b"more").serialize(),
    HeadersFrame(1, data=Encoder().encode([("x-trailer", "1")]), flags=["END_HEADERS", "END_STREAM"]).serialize(),
    b"\x00\x00\x04\x63\x00\x00\x00\x00\x00abcd",
]
GOAWAY = GoAwayFrame(0, last_stream_id=0).serialize()


def _of_http2(random: Random) -> Iterator[bytes]:
    for shapes in HTTP2:
        data = shapes[random.getrandbits(16) % len(shapes)]
        chance = random.getrandbits(6)
        if chance < 16:
            data += OTHERS[random.getrandbits(8) % len(OTHERS)]
        if chance < 8:
            data = hurt_frames(data, random)
        yield GOAWAY if chance == 63 else data


def _judge_http2(out: bytes) -> None:
    if out.startswith(b"HTTP/1.1 "):  # the preface was hurt
        return
    at = 0
    while at < len(out):
        frame, length = Frame.parse_frame_header(memoryview(out[at : at + 9]))
        frame.parse_body(memoryview(out[at + 9 : at + 9 + length]))
        at += 9 + length
    assert at == len(out)


def _masked(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    size = len(payload)
    head = bytes((opcode | 0x80 * final,))
    head += bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
    return head + _MASK + bytes(one ^ _MASK[n & 3] for n, one in enumerate(payload))


MESSAGES = [
    _masked(1, EVENT),
    _masked(1, EVENT * 3),
    _masked(1, EVENT[:20], final=False) + _masked(9, b"p") + _masked(0, EVENT[20:]),
    _masked(9, b"ping"),
    _masked(10, b"pong"),
    _masked(2, EVENT),
]
CLOSING = _masked(8, b"\x03\xe8")


def _of_websocket(random: Random) -> Iterator[bytes]:
    while True:
        chance = random.getrandbits(7)
        data = MESSAGES[chance % 3 if chance < 120 else random.getrandbits(8) % len(MESSAGES)]
        if chance < 16:
            data = hurt_frames(data, random)
        yield CLOSING if chance == 127 else data


def _judge_websocket(out: bytes) -> None:
    assert out.startswith(b"HTTP/1.1 ")
    assert not out.startswith(b"HTTP/1.1 500 ")


def _draw_body(random: Random) -> tuple[str, bytes]:
    """Returns a coding, and a body that may be in it."""
    coding = random.choice(list(CODINGS))
    shapes = CODINGS[coding]
    return coding, hurt_frames(shapes[random.getrandbits(8) % len(shapes)], random)


def _body(given: tuple[str, bytes]) -> str:
    coding, data = given
    headers = [(b"content-encoding", coding.encode())]
    asked = HttpRequest(method="POST", target=b"/events", headers=headers, body=data)
    assert len(decoded(asked, _DECODED_BYTES_MAX)) <= _DECODED_BYTES_MAX
    return "decoded"


TARGETS: dict[str, Target] = {
    "http1": _connections(b"", _of_http1, _judge_http1),
    "http2": _connections(PREFACE + SettingsFrame(0, settings={4: 1_000_000}).serialize(), _of_http2, _judge_http2),
    "websocket": _connections(UPGRADE, _of_websocket, _judge_websocket),
    "body": single_inputs(
        _draw_body, _body, refusals=(HttpError, Refusal), shown=lambda given: f"{given[0]}: {hex_of(given[1])}"
    ),
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
