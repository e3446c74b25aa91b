"""`/kv` over both versions: keys, conditions, pages, transactions, watches."""

import base64
import gzip
import json
from typing import Any, TypeAlias

import pytest

from adapters.http import HttpOptions
from adapters.http.wire.h1 import OUTPUT_BYTES_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from gateway.port.kv import Compacted, GetKey, ListKeys, Match, StoreKey, TransactKeys, WatchKeys
from store.api.keys import EXISTS, Change, Delete, Put
from tests.support.http.http_driver import NOW_MS, Http1Client, Http2Client, parse_responses, request
from tests.support.http.http_keys import KvGateway

Client: TypeAlias = Http1Client | Http2Client


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def client(request: pytest.FixtureRequest) -> Any:
    return request.param(KvGateway())


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


# ---- one key


def test_a_key_and_its_value(client: Any) -> None:
    answer = client.ask("PUT", "/kv/a/b%20c", body=b"\0value")
    assert (answer.status, answer["etag"], answer.json) == (201, '"1"', {"revision": 1, "created": True})
    answer = client.ask("PUT", "/kv/a/b%20c?ttl=1.5", body=b"new")
    assert (answer.status, answer["etag"], answer.json) == (200, '"2"', {"revision": 2, "created": False})
    answer = client.ask("GET", "/kv/a/b%20c")
    assert (answer.status, answer.body, answer["etag"]) == (200, b"new", '"2"')
    assert answer["content-type"] == "application/octet-stream"
    assert answer["content-security-policy"] == "sandbox"
    assert (answer["x-create-revision"], answer["x-version"]) == ("1", "2")
    assert answer["x-expires-at-ms"] == str(NOW_MS + 1_500)
    assert client.ask("HEAD", "/kv/a/b%20c").status == 200
    assert client.ask("DELETE", "/kv/a/b%20c").status == 204
    assert client.ask("DELETE", "/kv/a/b%20c").status == 404
    answer = client.ask("GET", "/kv/a/b%20c")
    assert (answer.status, answer["content-type"]) == (404, "application/problem+json")
    assert client.gateway.asked[0] == StoreKey(key="a/b c", value=b"\0value")


def test_a_value_is_stored_without_its_content_coding(client: Any) -> None:
    assert client.ask("PUT", "/kv/a", ("content-encoding", "gzip"), body=gzip.compress(b"value")).status == 201
    assert client.ask("GET", "/kv/a").body == b"value"
    answer = client.ask("PUT", "/kv/a", ("content-encoding", "lzma"), body=b"value")
    assert (answer.status, answer.json["attribute"]) == (415, "content-encoding")
    assert client.ask("PUT", "/kv/a", ("content-encoding", "gzip"), body=b"value").status == 400


def test_namespaces(client: Any) -> None:
    client.ask("PUT", "/kv/a?ns=one", body=b"1")
    assert client.ask("GET", "/kv/a?ns=one").body == b"1"
    assert client.ask("GET", "/kv/a?ns=two").status == 404
    assert client.ask("GET", "/kv/a").status == 404
    for method, target in (("GET", "/kv/a"), ("PUT", "/kv/a"), ("DELETE", "/kv/a"), ("GET", "/kv"), ("POST", "/kv")):
        body = b'{"operations":[]}' if method in {"PUT", "POST"} else None
        answer = client.ask(method, f"{target}?ns=$sys", body=body)
        assert (answer.status, answer.json["detail"]) == (403, "reserved")
    assert client.ask("GET", "/kv?ns=$sys&watch").status == 403


def test_a_value_that_has_not_changed(client: Any) -> None:
    client.ask("PUT", "/kv/a", body=b"1")
    for tag in ('"1"', 'W/"1"', '"7", "1"', "*"):
        answer = client.ask("GET", "/kv/a", ("if-none-match", tag))
        assert (answer.status, answer.body, answer["etag"]) == (304, b"", '"1"')
    for tag in ('"2"', '"01x"', "1", '""'):
        assert client.ask("GET", "/kv/a", ("if-none-match", tag)).status == 200


def test_a_value_that_has_to_be_of_a_revision(client: Any) -> None:
    """(RFC 9110, 13.1.1)"""
    client.ask("PUT", "/kv/a", body=b"1")
    for tag in ('"1"', '"7", "1"', "*"):
        assert client.ask("GET", "/kv/a", ("if-match", tag)).status == 200
    for tag in ('"2"', 'W/"1"', "", "x"):
        answer = client.ask("GET", "/kv/a", ("if-match", tag), ("if-none-match", '"1"'))
        assert (answer.status, answer.json["revision"]) == (412, 1)
    assert client.ask("GET", "/kv/b", ("if-match", "*")).status == 404


def test_a_part_of_a_value_does_not_replace_it(client: Any) -> None:
    """(RFC 9110, 14.5)"""
    client.ask("PUT", "/kv/a", body=b"1")
    assert client.ask("PUT", "/kv/a", ("content-range", "bytes 0-0/2"), body=b"2").status == 400
    assert client.ask("GET", "/kv/a").body == b"1"


@pytest.mark.parametrize(
    ("headers", "match"),
    [
        ((), Match()),
        ((("if-match", '"5"'),), Match(any_of=(5,))),
        ((("if-match", "*"),), Match(any_of=(EXISTS,))),
        ((("if-match", '"5", "6"'),), Match(any_of=(5, 6))),
        ((("if-none-match", "*"),), Match(any_of=(0,))),
        ((("if-none-match", '"5", W/"6"'),), Match(none_of=(5, 6))),
        ((("if-match", '"5"'), ("if-none-match", '"6"')), Match(any_of=(5,), none_of=(6,))),
        ((("if-match", 'W/"5"'),), Match(any_of=((1 << 63) - 1,))),
        ((("if-match", "nonsense"),), Match(any_of=((1 << 63) - 1,))),
        ((("if-match", '"0"'),), Match(any_of=((1 << 63) - 1,))),
        ((("if-match", '"05"'),), Match(any_of=((1 << 63) - 1,))),
        ((("if-none-match", '"05", "6"'),), Match(none_of=(6,))),
    ],
)
def test_conditions(client: Any, headers: Any, match: Match) -> None:
    client.ask("PUT", "/kv/a", *headers, body=b"")
    client.ask("DELETE", "/kv/a", *headers)
    assert [one.match for one in client.gateway.asked] == [match, match]


def test_a_condition_that_does_not_hold(client: Any) -> None:
    client.ask("PUT", "/kv/a", body=b"1")
    for method, header in (
        ("PUT", ("if-none-match", "*")),
        ("PUT", ("if-match", '"2"')),
        ("DELETE", ("if-match", '"2"')),
    ):
        answer = client.ask(method, "/kv/a", header, body=b"2" if method == "PUT" else None)
        assert (answer.status, answer["content-type"]) == (412, "application/problem+json")
        assert (answer.json["key"], answer.json["revision"]) == ("a", 1)
    answer = client.ask("PUT", "/kv/b", ("if-match", "*"), body=b"2")
    assert (answer.status, answer.json["revision"]) == (412, 0)
    assert client.ask("PUT", "/kv/a", ("if-match", '"1"'), body=b"2").status == 200


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/kv/a?x=1"),
        ("GET", "/kv/a?ns=a&ns=b"),
        ("PUT", "/kv/a?ttl="),
        ("PUT", "/kv/a?ttl=0"),
        ("PUT", "/kv/a?ttl=-1"),
        ("PUT", "/kv/a?ttl=1.2345"),
        ("PUT", "/kv/a?ttl=.5"),
        ("PUT", "/kv/a?ttl=1e3"),
        ("PUT", "/kv/a?ttl=99999999999"),
        ("GET", "/kv?limit=0"),
        ("GET", "/kv?limit=1001"),
        ("GET", "/kv?limit=x"),
        ("GET", "/kv?prefix=a&start=b"),
        ("GET", "/kv?revision=-1"),
        ("GET", "/kv?watch=perhaps"),
        ("GET", "/kv?watch&from=x"),
        ("GET", "/kv?from=1"),
        ("GET", "/kv/%ff"),
        ("POST", "/kv-holds?x"),
        ("DELETE", "/kv-holds"),
    ],
)
def test_what_cannot_be_asked(client: Any, method: str, target: str) -> None:
    answer = client.ask(method, target, body=b"" if method in {"PUT", "POST"} else None)
    assert (answer.status, answer["content-type"]) == (400, "application/problem+json")
    assert client.gateway.asked == []


def test_methods(client: Any) -> None:
    assert client.ask("POST", "/kv/a", body=b"")["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
    assert client.ask("OPTIONS", "/kv/a")["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
    assert client.ask("PUT", "/kv", body=b"")["allow"] == "GET, HEAD, OPTIONS, POST"
    assert client.ask("GET", "/kv/").status == 404


# ---- ranges


def test_pages(client: Any) -> None:
    for n in range(5):
        client.ask("PUT", f"/kv/k{n}", body=b"%d" % n)
    answer = client.ask("GET", "/kv?prefix=k&limit=2")
    assert answer.json == {
        "revision": 5,
        "entries": [
            {"key": f"k{n}", "revision": n + 1, "create_revision": n + 1, "version": 1, "value_base64": b64(b"%d" % n)}
            for n in range(2)
        ],
        "more": True,
    }
    assert answer["link"] == '</kv?prefix=k&limit=2&after=k1>; rel="next"'
    answer = client.ask("GET", "/kv?prefix=k&limit=3&after=k1&keys")
    assert [one["key"] for one in answer.json["entries"]] == ["k2", "k3", "k4"]
    assert "value_base64" not in answer.json["entries"][0]
    assert (answer.json["more"], answer["link"]) == (False, None)
    assert client.ask("GET", "/kv?start=k1&end=k3&count=true").json == {"count": 2}
    client.ask("GET", "/kv?prefix=k&revision=7&after=")
    assert client.gateway.asked[-1] == ListKeys(start="k", end="l", after="", limit=100, at_revision=7)


def test_a_state_that_is_held(client: Any) -> None:
    client.ask("PUT", "/kv/a", body=b"")
    answer = client.ask("POST", "/kv-holds", body=b"")
    assert (answer.status, answer.json) == (201, {"revision": 1})
    assert client.ask("GET", "/kv?revision=1").json["revision"] == 1
    assert client.ask("DELETE", "/kv-holds?revision=1").status == 204
    assert client.ask("DELETE", "/kv-holds?revision=5").status == 404
    client.gateway.earliest = 3
    answer = client.ask("GET", "/kv?revision=1")
    assert (answer.status, answer.json["earliest"]) == (410, 3)


# ---- transactions


def test_a_transaction(client: Any) -> None:
    client.ask("PUT", "/kv/a", body=b"")
    body = {
        "compare": [{"key": "a", "revision": 1}, {"key": "b", "revision": 0}],
        "operations": [
            {"put": "b", "value": "é", "ttl_ms": 5},
            {"put": "c", "value_base64": b64(b"\0"), "expires_at_ms": 9},
            {"delete": "a"},
        ],
    }
    answer = client.ask("POST", "/kv?ns=default", body=json.dumps(body).encode())
    assert (answer.status, answer.json) == (200, {"revision": 3, "existed": [False, False, True]})
    assert client.gateway.asked[-1] == TransactKeys(
        compares={"a": 1, "b": 0},
        operations=[Put("b", "é".encode(), None, 5), Put("c", b"\0", 9), Delete("a")],
    )
    answer = client.ask("POST", "/kv", body=json.dumps(body).encode())
    assert (answer.status, answer.json["key"], answer.json["revision"]) == (412, "a", 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"operations": [{}]}',
        b'{"operations": [{"put": "a"}]}',
        b'{"operations": [{"put": "a", "value": "", "value_base64": ""}]}',
        b'{"operations": [{"put": "a", "value_base64": "?"}]}',
        b'{"operations": [{"put": "a", "value": "", "delete": "a"}]}',
        b'{"operations": [{"delete": "a", "value": ""}]}',
        b'{"operations": [{"delete": "a", "ttl_ms": 1}]}',
        b'{"operations": [{"put": "a", "value": "", "ttl_ms": 0}]}',
        b'{"operations": [{"put": "a", "value": "", "ttl_ms": 1, "expires_at_ms": 1}]}',
        b'{"operations": [{"put": "a", "value": "", "ttl_ms": 9223372036854775807}]}',
        b'{"operations": [], "else": []}',
        b'{"operations": [], "compare": [{"key": "a", "revision": 1}, {"key": "a", "revision": 1}]}',
        b'{"operations": [], "compare": [{"key": "a", "revision": -2}]}',
        b'{"operations": [{"put": "a", "value": ""}, {"delete": "a"}]}',
        b'{"operations": [{"delete": "\xff"}]}',
        b'{"operations": [{"delete": ""}]}',
        b'{"operations": [{"put": "", "value": "a"}]}',
        b'{"operations": [], "compare": [{"key": "", "revision": 0}]}',
        b'{"operations": [{"delete": "a"}], "compare": [{"key": "a", "revision": 1.5}]}',
    ],
)
def test_what_is_no_transaction(client: Any, body: bytes) -> None:
    assert client.ask("POST", "/kv", body=body).status == 400
    assert client.gateway.asked == []


def test_a_whole_number_may_be_written_with_a_point(client: Any) -> None:
    body = b'{"operations": [{"put": "a", "value": "", "ttl_ms": 5.0}], "compare": [{"key": "a", "revision": 0.0}]}'
    assert client.ask("POST", "/kv", body=body).status == 200
    assert client.gateway.asked[-1] == TransactKeys(compares={"a": 0}, operations=[Put("a", b"", None, 5)])


# ---- watches


def events(text: bytes) -> list[dict[str, str]]:
    found = []
    for block in text.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            found.append(fields)
    return found


def test_a_watch_over_http_1_1() -> None:
    gateway = KvGateway()
    opening = gateway.feed(request("GET", "/kv?watch&prefix=a&from=3"))
    assert list(gateway.watches.values()) == [WatchKeys(watch=1, start="a", end="b", from_revision=3)]
    out = gateway.tell(1, Change("put", "a1", b"\0", 5, 77), Change("delete", "a2", b"", 5))
    out += gateway.tell(1, Change("expire", "a1", b"", 6))
    (answer,) = parse_responses(opening + out)
    assert (answer.status, answer["content-type"], answer["cache-control"]) == (200, "text/event-stream", "no-store")
    first, second, third = events(answer.body)
    assert (first["event"], second["event"], third["event"]) == ("put", "delete", "expire")
    assert "id" not in first  # a client that comes back here gets the whole of revision 5 again
    assert (second["id"], third["id"]) == ("5", "6")
    assert json.loads(first["data"]) == {"key": "a1", "revision": 5, "value_base64": b64(b"\0"), "expires_at_ms": 77}
    assert json.loads(third["data"]) == {"key": "a1", "revision": 6}


def test_a_watch_begins_with_an_id_that_is_no_event() -> None:
    gateway = KvGateway()
    opening = gateway.feed(request("GET", "/kv?watch&from=3"))
    (answer,) = parse_responses(opening)
    assert answer.body.endswith(b"id: 2\n\n")
    assert events(answer.body) == []


def test_watches_over_http_2() -> None:
    client = Http2Client(KvGateway())
    one = client.send("GET", "/kv?watch&prefix=a")
    two = client.send("GET", "/kv?watch&start=x&ns=other", ("last-event-id", "41"))
    client.flush()
    assert [(one.start, one.from_revision, one.namespace) for one in client.gateway.watches.values()] == [
        ("a", None, "default"),
        ("x", 42, "other"),
    ]
    client.read(client.gateway.tell(two, Change("put", "x", b"1", 50)))
    assert [event["id"] for event in events(client.answer(two).body)] == ["50"]
    assert events(client.answer(one).body) == []
    client.h2.reset_stream(two)
    client.flush()
    assert list(client.gateway.watches) == [one]
    assert list(client.gateway.reading) == [one]


def test_a_watch_that_cannot_begin(client: Any) -> None:
    client.gateway.earliest = 10
    answer = client.ask("GET", "/kv?watch&from=5")
    assert (answer.status, answer.json["earliest"]) == (410, 10)
    assert client.gateway.watches == {}


def test_a_watch_that_cannot_go_on() -> None:
    gateway = KvGateway()
    opening = gateway.feed(request("GET", "/kv?watch"))
    out = gateway.tell(1, error=Compacted("retention was faster", 70))
    (answer,) = parse_responses(opening + out)
    (event,) = events(answer.body)
    assert event["event"] == "error"
    assert json.loads(event["data"])["status"] == 410
    assert answer.ended
    assert gateway.watches == {}


def test_a_slow_reader_is_asked_for() -> None:
    """No changes are asked for while those before have not been read."""
    client = Http2Client(KvGateway())
    client.acknowledge = False
    stream = client.send("GET", "/kv?watch")
    client.flush()
    value = bytes(OUTPUT_BYTES_MAX)
    revision = 0
    while stream in client.gateway.reading:
        revision += 1
        client.read(client.gateway.tell(stream, Change("put", "a", value, revision)))
        assert revision < 20
    assert client.gateway.tick(after_ms=16_000) == b""  # nor does it need a heartbeat
    client.acknowledge = True
    while stream not in client.gateway.reading:
        client.h2.increment_flow_control_window(1 << 20)
        client.h2.increment_flow_control_window(1 << 20, stream)
        client.flush()
    assert len(events(client.answer(stream).body)) == revision


def test_a_quiet_watch_says_so() -> None:
    gateway = KvGateway(HttpOptions(sse_heartbeat_s=15))
    gateway.feed(request("GET", "/kv?watch"))
    assert gateway.adapter.deadline_ms() == NOW_MS + 15_000
    assert b":\n\n" in gateway.tick(after_ms=15_000)
    assert gateway.tick(after_ms=14_999) == b""


def test_a_watch_ends_with_its_connection_or_gateway(client: Any) -> None:
    gateway = client.gateway
    if isinstance(client, Http1Client):
        gateway.feed(request("GET", "/kv?watch"))
    else:
        client.send("GET", "/kv?watch")
        client.flush()
    assert gateway.watches
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    assert gateway.watches == {}
    assert gateway.closed


def test_head_of_a_watch_is_its_head(client: Any) -> None:
    answer = client.ask("HEAD", "/kv?watch")
    assert (answer.status, answer["content-type"]) == (200, "text/event-stream")
    assert client.gateway.watches == {}


def test_an_answer_that_comes_after_its_stream_has_gone() -> None:
    client = Http2Client(KvGateway(hold=True))
    client.gateway.hold = False
    stream = client.send("GET", "/kv?watch")
    client.flush()
    token = client.gateway.reading[stream]
    client.h2.reset_stream(stream)
    client.flush()
    refusal = Refusal(Cause.UNAVAILABLE, "the watch has ended")
    assert list(client.gateway.adapter.completed(token, Outcome(error=refusal), now_ms=NOW_MS)) == []
    assert client.ask("GET", "/kv/a").status == 404
    assert client.gateway.asked[-1] == GetKey(key="a")


def test_pipelined_requests_take_effect_in_their_order() -> None:
    """On HTTP/1.1 a read that comes behind a change waits for it."""
    gateway = KvGateway(hold=False)
    gateway.feed(request("GET", "/kv/a"))
    gateway.hold = True
    out = gateway.feed(request("PUT", "/kv/a", body=b"1") + request("GET", "/kv/a") + request("DELETE", "/kv/a"))
    assert out == b""
    assert len(gateway.held) == 1
    answers = parse_responses(gateway.release())
    assert [answer.status for answer in answers] == [201, 200, 204]
    assert answers[1].body == b"1"


def test_pages_of_other_origins() -> None:
    client = Http1Client(KvGateway())
    assert client.ask("PUT", "/kv/a", ("origin", "https://evil.example"), body=b"").status == 403
    assert client.ask("DELETE", "/kv/a", ("origin", "https://evil.example")).status == 403
