"""Fuzz targets of HTTP requests with JSON: `python -m tests.fuzz.targets.requests_target --inputs 1000000 --seed 7`.

`json` sends one request an input, to an operation whose body is JSON, with members that are of another type, out of
range, missing or too many, and with bytes that are hurt; the gateway behind answers as it would, or refuses. Each is
answered once, by JSON, or by a problem document that has its status; none with 500. `pieces` sends requests of
HTTP/1.1 with chunks, trailers and empty lines, hurt, whole and in pieces, which have to be the same to the gateway.
A finding is found again by its lot: `--seed 7 --lot 123 --inputs 10000`.
"""

import gzip
import json
import sys
from functools import partial
from random import Random
from typing import Any

from adapters.http.openapi.operations import JSON, OPERATIONS
from gateway.domain.errors import Cause, Refusal
from gateway.port import groups, push
from gateway.port.adapter import Call, Outcome
from gateway.push.checks import check_spec
from gateway.push.guard import SinkGuard
from gateway.push.http_kind import HttpKind
from gateway.push.settings import SubscriptionsConfig
from store.api.message import Message
from tests.fuzz.targets import lots
from tests.fuzz.targets.lots import Target, hex_of, single_inputs
from tests.support.http.http1_exchanges import statuses
from tests.support.http.http_driver import Gateway, parse_responses, request
from tests.support.http.http_keys import KvGateway

_SPEC = {
    "sink": "https://orders.example.com/hook",
    "protocol": "HTTP",
    "source": "/s",
    "types": ["com.example.a"],
    "config": {"addresses": ["orders/#"], "start": "earliest"},
    "filters": [{"prefix": {"type": "com."}}, {"any": [{"sql": "id = '1'"}, {"not": {"exact": {"subject": "a"}}}]}],
    "sinkcredential": {"credentialtype": "PLAIN", "identifier": "u", "secret": "s"},
    "protocolsettings": {"mode": "structured", "concurrency": 4, "retrymin": 0.5, "headers": {"x-a": "b"}},
}
# Operation -> paths, and bodies that it takes.
SHAPES: dict[str, tuple[list[str], list[Any]]] = {
    "POST /kv": (
        ["/kv", "/kv?ns=n"],
        [
            {"operations": [{"put": "a", "value": "x", "ttl_ms": 5}, {"delete": "b"}]},
            {"operations": [{"put": "a", "value_base64": "eA=="}], "compare": [{"key": "a", "revision": 0}]},
        ],
    ),
    "PUT /groups/{group}": (
        ["/groups/g", "/groups/a%20b"],
        [
            {"topic": "t", "start": "latest", "lease_s": 30, "ordered": True},
            {"topic": "t", "attempts": 3, "dead_letter": "d/g", "retry_s": 1, "retry_max_s": 60},
        ],
    ),
    "POST /groups/{group}/receive": (["/groups/g/receive"], [{"max": 5, "wait": 0.5, "lease_s": 30}, {}]),
    "POST /groups/{group}/ack": (["/groups/g/ack"], [{"handles": ["a.b.c", "d"]}]),
    "POST /groups/{group}/nack": (["/groups/g/nack"], [{"handles": ["a"], "delay_s": 5}]),
    "POST /groups/{group}/extend": (["/groups/g/extend"], [{"handles": ["a", "b"], "lease_s": 60}]),
    "POST /groups/{group}/members": (
        ["/groups/g/members"],
        [{"topic": "t", "strategy": "averaged", "start": "earliest", "ttl_s": 10}],
    ),
    "POST /groups/{group}/reset": (
        ["/groups/g/reset"],
        [
            {"to": "latest", "queues": [1, 2]},
            {"to": "timestamp", "timestamp": "2026-11-23T02:45:00Z"},
            {"to": "offset", "offsets": {"1": 5}},
        ],
    ),
    "POST /groups/{group}/members/{member}/commit": (
        ["/groups/g/members/m/commit"],
        [{"generation": 1, "offsets": {"0": 5}}, {"after": "1~0.5"}],
    ),
    "POST /subscriptions": (["/subscriptions"], [_SPEC]),
    "PUT /subscriptions/{id}": (["/subscriptions/s"], [{**_SPEC, "id": "s"}]),
}
WITH_JSON = [name for name, operation in OPERATIONS.items() if JSON in operation.body]
ODD = [
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, 1e308, -0.0, 1.0, [], [[]], {}, {"": None}),
    *("", "\x00", "é", "\U0001f600", "a" * 300, "#", "a/+/b", "latest", "$x", "1~0.5", "~", "2026-02-30T00:00:00Z"),
    *([1, "a"], {"sql": "1 = "}),
]
_ACCEPT = ["*/*", "application/cloudevents-batch+json", "application/json;q=0", "q=;,,", ""]
_CAUSES = [cause for cause in Cause if cause is not Cause.DAMAGED]  # which has the status 500
_GUARD = SinkGuard(SubscriptionsConfig())
_MESSAGE = Message(address="t/a", body=b"\xff", id="1", properties=(("ext", "x"),))
_NUMBER_MAX = (1 << 63) - 1
hurt = partial(lots.hurt, telling=b'"{}[]:,\\0159.eE-+ntf\x00\x80\xc3\xff ')


class AnsweringGateway(KvGateway):
    """A gateway that checks subscriptions as the real one does, and answers groups."""

    def __init__(self, random: Random) -> None:
        self.random = random
        super().__init__()

    def answer_effect(self, call: Call) -> Outcome:
        """Answers; refuses one in eight by chance."""
        asked = call.request
        if not self.random.getrandbits(3) and type(asked).__module__ in {groups.__name__, push.__name__}:
            return Outcome(error=Refusal(self.random.choice(_CAUSES), "by chance"))
        if isinstance(asked, push.CreateSubscription | push.UpdateSubscription):
            try:
                check_spec(asked.spec, _GUARD, {"HTTP": HttpKind()})
            except Refusal as refusal:
                return Outcome(error=refusal)
            made = push.PushSubscription(id="s", revision=1, spec=asked.spec, status=push.DeliveryStatus())
            return Outcome(value=made)
        if type(asked).__module__ == groups.__name__:
            return Outcome(value=self._of_group(asked))
        return super().answer_effect(call)

    def _of_group(self, asked: Any) -> Any:
        if isinstance(asked, groups.CreateLeaseGroup):
            return groups.LeaseGroup(group=asked.group, topic=asked.topic, terms=asked.terms, created=True)
        if isinstance(asked, groups.ReceiveMessages):
            return [groups.Received(1, _NUMBER_MAX, 2, "h", _MESSAGE)] * self.random.getrandbits(1)
        if isinstance(asked, groups.SettleReceived | groups.ReturnReceived | groups.ExtendReceived):
            good = "h" if isinstance(asked, groups.ExtendReceived) else None
            return [good if self.random.getrandbits(1) else Refusal(Cause.CONFLICT, "lost") for _ in asked.handles]
        if isinstance(asked, groups.JoinGroup):
            return groups.Joined(member="m", topic=asked.topic, strategy=asked.strategy, ttl_s=asked.ttl_s)
        offsets = asked.cursor.offsets if isinstance(asked, groups.CommitOffsets) else asked.offsets or {}
        assert all(0 <= one <= _NUMBER_MAX for pair in offsets.items() for one in pair)
        if isinstance(asked, groups.CommitOffsets):
            assert 0 <= asked.cursor.generation <= _NUMBER_MAX
        return offsets


def _changed(value: Any, random: Random) -> Any:
    """Returns JSON in which one value is another one, is missing, or has a neighbour."""
    if isinstance(value, dict) and value and random.getrandbits(3):
        name = random.choice(list(value))
        chance = random.getrandbits(3)
        if chance == 0:
            return {key: one for key, one in value.items() if key != name}
        if chance == 1:
            return {**value, random.choice(["more", "", name.upper(), "topic", "9", "-1"]): random.choice(ODD)}
        return {**value, name: _changed(value[name], random)}
    if isinstance(value, list) and value and random.getrandbits(2):
        at = random.randrange(len(value))
        some = value * random.choice([1, 1, 1, 40, 400]) if random.getrandbits(4) == 0 else list(value)
        some[at] = _changed(value[at], random)
        return some
    return random.choice(ODD)


def _draw_json(random: Random) -> tuple[bytes, int]:
    """Returns a request, and the seed of what answers it."""
    name = random.choice(WITH_JSON)
    paths, bodies = SHAPES[name]
    body = random.choice(bodies)
    for _ in range(random.getrandbits(2)):
        body = _changed(body, random)
    raw = json.dumps(body, ensure_ascii=bool(random.getrandbits(1))).encode()
    if not random.getrandbits(2):
        raw = hurt(raw, random)
    if not random.getrandbits(9):
        raw = b"[" * 5_000
    headers = [("content-type", JSON), ("accept", random.choice(_ACCEPT))]
    if not random.getrandbits(4):
        headers.append(("content-encoding", random.choice(["gzip", "br", "deflate", "zstd", "x"])))
        raw = gzip.compress(raw, 1)
    if not random.getrandbits(4):
        headers.append(("if-match", random.choice(['"1"', "*", "W/", '"x"', ""])))
    return request(name.split(" ")[0], random.choice(paths), *headers, body=raw), random.getrandbits(32)


def _json(given: tuple[bytes, int]) -> str:
    data, seed = given
    out = AnsweringGateway(Random(seed)).feed(data)
    (answer,) = parse_responses(out)
    assert answer.status != 500
    if answer.status in {204, 304}:
        return "done"
    found = answer.json
    if answer.status < 400:
        return "done"
    assert answer["content-type"] == "application/problem+json"
    assert found["status"] == answer.status
    return "refused"


# ---- HTTP/1.1 in pieces

_HEAD = b"POST /topics/c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: %b\r\n\r\n"
PIECES = [
    _HEAD % b"chunked" + b"3\r\nabc\r\n0\r\n\r\n",
    _HEAD % b"Chunked" + b'3;a=b;c="d;\\"e"\r\nabc\r\nA;x\r\n0123456789\r\n000;e=f\r\nX-Sum: 1\r\nY:\r\n\r\n',
    _HEAD % b" chunked" + b"0000000000000000001\r\n\n\r\n1\r\n\r\r\n0\r\n\r\n",
    _HEAD % b"chunked" + b"5;" + b"e" * 16_000 + b"\r\nabcde\r\n5;" + b"e" * 300 + b"\r\nabcde\r\n0\r\n\r\n",
    b"POST /topics/d HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n3\r\nabc\r\n\n",
    b"\r\n\r\nPOST /topics/e HTTP/1.1\r\nHost: h\r\nX-Folded: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    b"GET /topics HTTP/1.1\r\nHost: h\r\nX-Chunked: chunked\r\n\r\n",
    b"GET /topics HTTP/1.2\r\nHost:  \t h \r\n\r\n",
    b"POST /topics/f HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 70_000 + b"\r\nContent-Length: 0\r\n\r\n",
]
hurt_line = partial(lots.hurt, telling=b'\r\n\n\r;="0159aAfF \t:x\x00\x0b\x7f\x80')


def _draw_pieces(random: Random) -> tuple[bytes, list[int]]:
    data = b"".join([PIECES[random.getrandbits(16) % len(PIECES)] for _ in range(1 + random.getrandbits(1))])
    if random.getrandbits(2):
        data = hurt_line(data, random)
    cuts = sorted({random.getrandbits(20) % (min(len(data), 400) + 1) for _ in range(random.getrandbits(3))})
    return data, cuts


def _said(gateway: Gateway, parts: list[bytes]) -> tuple[list[int], list[bytes], bool]:
    """Returns the statuses of the answers, the bodies stored, and whether the connection goes on."""
    out = b"".join([gateway.feed(part) for part in parts if part])
    # How much of a line has come is all that tells a method that nobody knows from what is no request.
    found = [400 if one == 501 else one for one in statuses(out)]
    return found, [message.body for message in gateway.messages], gateway.adapter.wants_data


def _pieces(given: tuple[bytes, list[int]]) -> str:
    data, cuts = given
    whole = _said(Gateway(short=False), [data])
    parts = [data[at:end] for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    pieces = _said(Gateway(short=False), parts)
    assert pieces == whole, (pieces, whole)
    assert 500 not in whole[0]
    return "refused" if whole[0] and whole[0][-1] >= 400 else "taken"


TARGETS: dict[str, Target] = {
    "json": single_inputs(_draw_json, _json, refusals=(), shown=lambda given: f"{given[1]}: {hex_of(given[0])}"),
    "pieces": single_inputs(
        _draw_pieces, _pieces, refusals=(), shown=lambda given: f"{given[1]}: {hex_of(given[0][:2_000])}"
    ),
}

run = partial(lots.run, TARGETS)

if __name__ == "__main__":
    sys.exit(lots.main(TARGETS, __doc__, sys.argv[1:]))
