"""Requests do the same over HTTP/1.1 and HTTP/2."""

import base64
import json
from collections.abc import Callable
from typing import TypeAlias

import pytest

from adapters.cloudevents import EventRoute, from_structured, to_avro, to_protobuf, to_protobuf_batch
from adapters.http import HttpOptions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Subscribe
from gateway.port.tickets import timer_of
from store.api.message import Message
from tests.support.http.http_driver import NOW_MS, Gateway, Http1Client, Http2Client

Client: TypeAlias = Http1Client | Http2Client
EVENT = {"specversion": "1.0", "id": "A-1", "source": "/s", "type": "com.example.reading"}
CE_HEADERS = tuple((f"ce-{name}", value) for name, value in EVENT.items())
STRUCTURED = ("content-type", "application/cloudevents+json; charset=utf-8")
BATCH = ("content-type", "application/cloudevents-batch+json")
JSON = ("content-type", "application/json")


def as_json(document: object) -> bytes:
    return json.dumps(document).encode()


@pytest.fixture(params=[Http1Client, Http2Client], ids=["h1", "h2"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Client]:
    return lambda options=None: request.param(Gateway(options))


# ---- /events


def test_a_binary_event(connect: Callable[..., Client]) -> None:
    client = connect()
    answer = client.ask("POST", "/events", *CE_HEADERS, ("ce-ext", "a%20%C3%A9%25"), JSON, body=b'{"v":1}')
    assert answer.status == 200
    assert answer.json == {"id": "A-1", "position": "1.0"}
    (message,) = client.gateway.messages
    assert (message.address, message.body, message.content_type) == (
        "events/com.example.reading",
        b'{"v":1}',
        "application/json",
    )
    assert message.properties == (("ext", "a é%"),)
    assert (message.protocol, message.time_ms) == ("http", NOW_MS)


def test_a_structured_event(connect: Callable[..., Client]) -> None:
    client = connect()
    body = json.dumps({**EVENT, "subject": "a/b", "data": 5}).encode()
    assert client.ask("POST", "/events?qos=0&retain", STRUCTURED, body=body).json == {"id": "A-1", "position": "1.0"}
    (message,) = client.gateway.messages
    assert (message.address, message.body, message.qos, message.retain) == ("a/b", b"5", 0, True)


def test_a_batch_is_one_publish(connect: Callable[..., Client]) -> None:
    client = connect()
    body = json.dumps([{**EVENT, "id": str(n), "subject": f"a/{n}"} for n in range(3)]).encode()
    answer = client.ask("POST", "/events", BATCH, body=body)
    assert answer.status == 200
    assert answer.json == [{"id": str(n), "position": f"1.{n}"} for n in range(3)]
    assert [len(frame) for frame in client.gateway.frames] == [3]
    assert client.ask("POST", "/events", BATCH, body=b"[]").json == []


def test_a_malformed_batch_is_refused_whole(connect: Callable[..., Client]) -> None:
    client = connect()
    body = json.dumps([EVENT, {**EVENT, "source": ""}, {**EVENT, "time": "x"}]).encode()
    answer = client.ask("POST", "/events", BATCH, body=body)
    assert answer.status == 400
    assert answer["content-type"] == "application/problem+json"
    assert [(error["index"], error["attribute"]) for error in answer.json["errors"]] == [(1, "source"), (2, "time")]
    assert client.gateway.messages == []


def test_a_batch_refused_in_part_says_what_was_stored(connect: Callable[..., Client]) -> None:
    client = connect()
    client.gateway.refusals["a/1"] = Refusal(Cause.QUOTA, "enough", retry_after_ms=2500)
    body = json.dumps([{**EVENT, "id": str(n), "subject": f"a/{n}"} for n in range(3)]).encode()
    answer = client.ask("POST", "/events", BATCH, body=body)
    assert answer.status == 429
    assert answer["retry-after"] == "3"
    assert answer.json["errors"] == [{"index": 1, "cause": "quota", "detail": "enough"}]
    assert answer.json["stored"] == [
        {"index": 0, "id": "0", "position": "1.0"},
        {"index": 2, "id": "2", "position": "1.1"},
    ]


@pytest.mark.parametrize(
    ("headers", "body", "status", "attribute"),
    [
        ((), b"x", 415, None),
        ((("content-type", "application/cloudevents+xml"),), b"x", 415, "content-type"),
        ((("content-type", "application/cloudevents+json; charset=utf-16"),), b"x", 415, "content-type"),
        ((STRUCTURED, ("content-encoding", "compress")), b"x", 415, "content-encoding"),
        ((STRUCTURED,), b"not json", 400, None),
        ((STRUCTURED,), b'{"id":"1"}', 400, "specversion"),
        (CE_HEADERS[:2], b"", 400, "source"),
        ((*CE_HEADERS, ("ce-time", "yesterday")), b"", 400, "time"),
        ((*CE_HEADERS, ("ce-id", "again")), b"", 400, "id"),
        ((*CE_HEADERS, ("ce-x", "%FF")), b"", 400, "x"),
        ((*CE_HEADERS, ("ce-bad-name", "x")), b"", 400, "bad-name"),
        ((*CE_HEADERS, ("x-correlation-data", "%")), b"", 400, "x-correlation-data"),
        ((*CE_HEADERS, ("x-reply-to", "a/+")), b"", 400, "x-reply-to"),
    ],
)
def test_what_is_no_event_is_refused(
    connect: Callable[..., Client],
    headers: tuple[tuple[str, str], ...],
    body: bytes,
    status: int,
    attribute: str | None,
) -> None:
    client = connect()
    answer = client.ask("POST", "/events", *headers, body=body)
    assert (answer.status, answer.json["status"], answer.json.get("attribute")) == (status, status, attribute)
    assert answer["content-type"] == "application/problem+json"
    assert ("accept-encoding" if attribute == "content-encoding" else "accept") in dict(answer.headers) or status != 415
    assert client.gateway.messages == []
    assert client.ask("POST", "/events", *CE_HEADERS, body=b"").status == 200  # the connection goes on


# ---- POST /topics


def test_a_plain_message_with_everything(connect: Callable[..., Client]) -> None:
    client = connect(HttpOptions(property_headers=("X-Unit",)))
    answer = client.ask(
        "POST",
        "/topics/telemetry/site%201/temp?qos=2&retain=true&key=k&expiry=60&delay=5&reply=answers/1",
        ("content-type", "text/plain"),
        ("content-encoding", "identity"),
        ("idempotency-key", '"abc"'),
        ("ce-type", "reading"),
        ("ce-time", "2018-04-05T17:31:00Z"),
        ("ce-colour", "red"),
        ("x-unit", "C"),
        ("x-other", "ignored"),
        ("x-correlation-data", "/w=="),
        ("traceparent", "00-1-2-01"),
        body=b"21.5",
    )
    timer = answer.json["timer"]  # it has no place among the others before it is due
    assert timer_of(Principal(name=""), timer) == f"{NOW_MS + 5_000:x}-1.0"
    assert (answer.status, answer.json) == (201, {"id": "abc", "position": None, "timer": timer})
    assert answer["location"] == "/topics/telemetry/site%201/temp"
    assert client.gateway.messages == [
        Message(
            address="telemetry/site 1/temp",
            body=b"21.5",
            time_ms=1_522_949_460_000,
            protocol="http",
            device="temp",
            principal="",
            qos=2,
            retain=True,
            id="abc",
            key="k",
            type="reading",
            content_type="text/plain",
            content_encoding="identity",
            expires_at_ms=NOW_MS + 60_000,
            deliver_at_ms=NOW_MS + 5_000,
            reply_to="answers/1",
            correlation=b"\xff",
            traceparent="00-1-2-01",
            properties=(("colour", "red"), ("x-unit", "C")),
        )
    ]


def test_an_event_may_go_to_an_address(connect: Callable[..., Client]) -> None:
    client = connect()
    assert client.ask("POST", "/topics/a/b", *CE_HEADERS, body=b"").status == 201
    assert client.ask("POST", "/topics/a/c", STRUCTURED, body=json.dumps(EVENT).encode()).status == 201
    batch = client.ask("POST", "/topics/a/d", BATCH, body=b"[]")
    assert (batch.status, (batch["accept"] or "").count("application/cloudevents+")) == (415, 3)
    assert [message.address for message in client.gateway.messages] == ["a/b", "a/c"]
    assert client.ask("GET", "/topics/a/b")["ce-source"] == "/s"


def test_without_an_id_the_log_gives_one(connect: Callable[..., Client]) -> None:
    client = connect()
    assert client.ask("POST", "/topics/a", body=b"").json == {"id": "1.0", "position": "1.0"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "attribute"),
    [
        ("/topics/a?qos=3", "qos"),
        ("/topics/a?qos=x", "qos"),
        ("/topics/a?qos=1&qos=1", "qos"),
        ("/topics/a?retain=maybe", "retain"),
        ("/topics/a?key=", "key"),
        ("/topics/a?expiry=-1", "expiry"),
        ("/topics/a?expiry=99999999999", "expiry"),
        ("/topics/a?delay=1.5", "delay"),
        ("/topics/a?reply=a/%23", "reply"),
        ("/topics/a?retian=true", "retian"),
        ("/topics/a/%23", None),
        ("/topics/a+", None),
        ("/topics/%00", None),
        ("/topics/%FF", None),
        ("/topics/%zz", None),
        ("/topics/" + "a" * 65_536, None),
    ],
)
def test_a_bad_target_is_refused(connect: Callable[..., Client], target: str, attribute: str | None) -> None:
    client = connect(HttpOptions(max_header_bytes=128 * 1024))
    answer = client.ask("POST", target, body=b"")
    assert (answer.status, answer.json.get("attribute")) == (400, attribute)
    assert client.gateway.messages == []


@pytest.mark.parametrize(
    ("refusal", "status", "retry_after"),
    [
        (Refusal(Cause.UNAUTHENTICATED), 401, None),
        (Refusal(Cause.FORBIDDEN), 403, None),
        (Refusal(Cause.MALFORMED), 400, None),
        (Refusal(Cause.TOO_LARGE), 413, None),
        (Refusal(Cause.NOT_FOUND), 404, None),
        (Refusal(Cause.CONFLICT), 409, None),
        (Refusal(Cause.PRECONDITION), 412, None),
        (Refusal(Cause.QUOTA, retry_after_ms=1), 429, "1"),
        (Refusal(Cause.QUOTA), 429, None),  # a used-up share is not there again in a second
        (Refusal(Cause.OVERLOAD), 503, "1"),
        (Refusal(Cause.UNAVAILABLE, retry_after_ms=5000), 503, "5"),
        (Refusal(Cause.UNKNOWN, retry_after_ms=5000), 504, None),
    ],
)
def test_every_refusal_has_a_status(
    connect: Callable[..., Client], refusal: Refusal, status: int, retry_after: str | None
) -> None:
    client = connect()
    client.gateway.refusals["a"] = refusal
    answer = client.ask("POST", "/topics/a", body=b"")
    assert (answer.status, answer["retry-after"], answer.json["detail"]) == (status, retry_after, refusal.detail)


def test_a_plain_message_does_not_say_where_it_was_published(connect: Callable[..., Client]) -> None:
    """Readers of other protocols got what its publisher had made up, as a property."""
    client = connect()
    headers = (("ce-headgateaddress", "closed/forged"), ("ce-unit", "K"))
    assert client.ask("POST", "/topics/a/b", *headers, body=b"").status == 201
    (message,) = client.gateway.messages
    assert message.properties == (("unit", "K"),)


# ---- GET /topics


def test_the_last_value(connect: Callable[..., Client]) -> None:
    client = connect()
    client.ask("POST", "/topics/a/b?reply=r", JSON, ("x-correlation-data", "/w=="), body=b'{"v":1}')
    answer = client.ask("GET", "/topics/a/b")
    assert (answer.status, answer.body, answer["content-type"]) == (200, b'{"v":1}', "application/json")
    assert (answer["ce-id"], answer["ce-source"], answer["ce-subject"]) == ("1.0", "//headgate/a", "a/b")
    assert (answer["x-reply-to"], answer["x-correlation-data"]) == ("r", "/w==")
    head = client.ask("HEAD", "/topics/a/b")
    assert (head.status, head.body, head["content-length"], head["etag"]) == (200, b"", "7", answer["etag"])
    assert client.ask("GET", "/topics/none").status == 404
    assert client.ask("GET", "/topics/a/b?qos=1").status == 400


def test_the_last_value_as_an_event(connect: Callable[..., Client]) -> None:
    client = connect()
    client.ask("POST", "/topics/a/b", JSON, body=b'{"v":1}')
    for accept, structured in [
        ("application/cloudevents+json", True),
        ("application/json;q=0.5, application/cloudevents+json", True),
        ("application/json, application/cloudevents+json;q=0.5", False),
        ("application/cloudevents+json;q=0", False),
        ("*/*", False),
    ]:
        answer = client.ask("GET", "/topics/a/b", ("accept", accept))
        assert (answer["content-type"] == "application/cloudevents+json; charset=utf-8") is structured
        assert answer["vary"] == "accept"
        if structured:
            assert answer.json["data"] == {"v": 1}


def test_a_last_value_that_has_to_be_of_a_tag(connect: Callable[..., Client]) -> None:
    """(RFC 9110, 13.1.1)"""
    client = connect()
    client.ask("POST", "/topics/a", body=b"1")
    tag = client.ask("GET", "/topics/a")["etag"]
    for required in (tag, f'"x", {tag}', "*"):
        assert client.ask("GET", "/topics/a", ("if-match", required or "")).status == 200
    for required in ('"x"', f"W/{tag}", ""):
        answer = client.ask("GET", "/topics/a", ("if-match", required), ("if-none-match", "*"))
        assert answer.status == 412
    assert client.ask("GET", "/topics/b", ("if-match", "*")).status == 404


def test_a_message_is_published_only_if_its_conditions_hold(connect: Callable[..., Client]) -> None:
    """(RFC 9110, 13.1.1, 13.1.2)"""
    client = connect()

    def post(*headers: tuple[str, str]) -> int:
        return client.ask("POST", "/topics/a", *headers, body=b"x").status

    def tag(accept: str = "*/*") -> str:
        return client.ask("GET", "/topics/a", ("accept", accept))["etag"] or ""

    assert post(("if-match", "*")) == post(("if-match", '"x"')) == 412
    assert client.ask("GET", "/topics/a").status == 404
    assert post(("if-none-match", "*")) == 201
    assert post(("if-none-match", "*")) == post(("if-none-match", f"W/{tag()}")) == 412
    assert post(("if-match", f"W/{tag()}")) == post(("if-match", "")) == 412
    for accept in ("*/*", "application/cloudevents+json"):
        assert post(("if-match", tag(accept)), ("if-none-match", '"x"')) == 201
    assert post(("if-match", "*")) == 201
    assert post(("if-match", tag()), ("if-none-match", tag())) == 412
    assert post(("if-unmodified-since", "Thu, 01 Jan 1970 00:00:00 GMT")) == 201


def test_events_have_nothing_to_match(connect: Callable[..., Client]) -> None:
    client, event = connect(), (("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "s"), ("ce-type", "t"))
    assert client.ask("POST", "/events", *event, ("if-match", "*"), body=b"1").status == 412
    assert client.ask("POST", "/events", *event, ("if-none-match", "*"), body=b"1").status == 200
    assert client.ask("POST", "/events", ("if-match", "*"), body=b"1").status == 415


def test_a_tag_saves_the_body(connect: Callable[..., Client]) -> None:
    client = connect()
    client.ask("POST", "/topics/a", body=b"1")
    tag = client.ask("GET", "/topics/a")["etag"]
    assert tag is not None
    for wanted in (tag, f'"x", W/{tag}', "*"):
        answer = client.ask("GET", "/topics/a", ("if-none-match", wanted))
        assert (answer.status, answer.body, answer["etag"]) == (304, b"", tag)
    assert client.ask("GET", "/topics/a", ("if-none-match", '"x"')).status == 200
    client.ask("POST", "/topics/a", body=b"1")
    assert client.ask("GET", "/topics/a", ("if-none-match", tag)).status == 200


def test_an_event_leaves_as_it_came(connect: Callable[..., Client]) -> None:
    client = connect()
    sent = (
        *CE_HEADERS,
        ("ce-subject", "a/b"),
        ("ce-time", "2018-04-05T17:31:00.5+01:00"),
        ("ce-ext", "%22%20%E2%82%AC"),
    )
    client.ask("POST", "/events", *sent, ("content-type", "text/plain"), body=b"hi")
    answer = client.ask("GET", "/topics/a/b")
    assert {item for item in answer.headers if item[0].startswith("ce-")} == set(sent)


def test_headers_that_cannot_be_sent_are_made_so(connect: Callable[..., Client]) -> None:
    client = connect(HttpOptions(property_headers=("x-note",)))
    odd = Message(
        address="a",
        id="1",
        content_type="no\r\nheader: 1",
        content_encoding="a b",
        traceparent="é",
        reply_to="r\n",
        properties=(("X-Note", " é\r\nx: y"), ("x-hidden", "h")),
    )
    client.gateway.frames.append([odd])
    answer = client.ask("GET", "/topics/a")
    assert answer.status == 200
    assert answer["content-type"] is answer["content-encoding"] is answer["traceparent"] is answer["x-hidden"] is None
    assert answer["x-reply-to"] == "r%0A"
    assert (answer["x-note"] or "").endswith("%0D%0Ax: y")


def test_addresses_are_listed(connect: Callable[..., Client]) -> None:
    client = connect()
    for address in ("b/1", "a/2", "a/1"):
        client.ask("POST", f"/topics/{address}", body=b"")
    assert client.ask("GET", "/topics").json == ["a/1", "a/2", "b/1"]
    assert client.ask("GET", "/topics")["link"] is None
    first = client.ask("GET", "/topics?prefix=a/&limit=1")
    assert (first.json, first["link"]) == (["a/1"], '</topics?prefix=a%2F&limit=1&after=a%2F1>; rel="next"')
    second = client.ask("GET", "/topics?prefix=a%2F&limit=1&after=a%2F1")
    assert (second.json, second["link"]) == (["a/2"], '</topics?prefix=a%2F&limit=1&after=a%2F2>; rel="next"')
    third = client.ask("GET", "/topics?prefix=a%2F&limit=1&after=a%2F2")
    assert (third.json, third["link"]) == ([], None)
    for target in ("/topics?limit=0", "/topics?limit=x", "/topics?limit=1001", "/topics?offset=1"):
        assert client.ask("GET", target).status == 400


# ---- the table


@pytest.mark.parametrize(
    ("method", "target", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/topics/", 404, None),
        ("GET", "/events", 405, "OPTIONS, POST"),
        ("DELETE", "/topics/a", 405, "GET, HEAD, OPTIONS, POST"),
        ("POST", "/subscribe", 405, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/topics", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/events", 204, "OPTIONS, POST"),
        ("OPTIONS", "*", 204, "DELETE, GET, HEAD, OPTIONS, POST, PUT"),
        ("OPTIONS", "/nothing", 404, None),
    ],
)
def test_methods(connect: Callable[..., Client], method: str, target: str, status: int, allow: str | None) -> None:
    answer = connect().ask(method, target, body=b"" if method == "POST" else None)
    assert (answer.status, answer["allow"]) == (status, allow)


# ---- who


def _basic(name: str, password: str) -> tuple[str, str]:
    return "authorization", "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


def test_the_principal_is_the_device(connect: Callable[..., Client]) -> None:
    client = connect()
    client.gateway.anonymous = False
    answer = client.ask("POST", "/topics/a", body=b"")
    assert answer.status == 401
    assert answer["www-authenticate"] == 'Basic realm="headgate", charset="UTF-8"'
    assert client.ask("POST", "/topics/a", _basic("alice", "wrong"), body=b"").status == 401
    assert client.ask("POST", "/topics/a", _basic("alice", "secret"), body=b"").status == 201
    assert client.ask("POST", "/topics/a", ("authorization", "Bearer x"), body=b"").status == 401
    assert client.ask("POST", "/topics/a", ("authorization", "Basic !"), body=b"").status == 400
    assert client.ask("POST", "/topics/a", ("authorization", "Basic YQ=="), body=b"").status == 401
    assert [message.device for message in client.gateway.messages] == ["alice"]


def test_who_is_asked_once_a_connection(connect: Callable[..., Client]) -> None:
    client = connect()
    for _ in range(3):
        client.ask("POST", "/topics/a", _basic("alice", "secret"), body=b"")
    calls = [effect for effect in client.gateway.effects if type(effect).__name__ == "Call"]
    assert len(calls) == 1


def test_a_trusted_gateway_names_the_device(connect: Callable[..., Client]) -> None:
    client = connect()
    headers = (*CE_HEADERS, ("ce-deviceid", "d7"), _basic("alice", "secret"))
    client.ask("POST", "/events", *headers, body=b"")
    client.gateway.trusted.add("alice")
    other = type(client)(Gateway())
    other.gateway.trusted.add("alice")
    other.ask("POST", "/events", *headers, body=b"")
    assert [(one.device, one.principal) for one in client.gateway.messages] == [("alice", None)]
    assert [(one.device, one.principal) for one in other.gateway.messages] == [("d7", "alice")]


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("kind", ["json", "protobuf", "avro", "json-batch", "protobuf-batch", "lenient"])
def test_the_login_of_a_trusted_gateway_is_kept_in_each_form(
    connect: Callable[..., Client], kind: str, trusted: bool
) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "headgateprincipal": "forged"}
    claims = [{**event, "deviceid": device, "data": 1} for device in ("d7", "alice")]
    messages = [from_structured(as_json(one), now_ms=0, protocol="", device="") for one in claims]
    forms: dict[str, tuple[str, list[bytes]]] = {
        "json": ("+json", [as_json(one) for one in claims]),
        "protobuf": ("+protobuf", [to_protobuf(one) for one in messages]),
        "avro": ("+avro", [to_avro(one) for one in messages]),
        "json-batch": ("-batch+json", [as_json(claims)]),
        "protobuf-batch": ("-batch+protobuf", [to_protobuf_batch(messages)]),
        "lenient": ("-batch+json", [as_json(claims)]),
    }
    name, bodies = forms[kind]
    client = connect()
    client.gateway.trusted.update(["alice"] * trusted)
    for body in bodies:
        headers = ("content-type", f"application/cloudevents{name}"), _basic("alice", "secret")
        more = (("prefer", "handling=lenient"),) if kind == "lenient" else ()
        assert client.ask("POST", "/events", *headers, *more, body=body).status in {200, 207}
    found = [(one.device, one.principal) for one in client.gateway.messages]
    assert found == [("d7", "alice") if trusted else ("alice", None), ("alice", None)]


# ---- browsers


def test_pages_of_other_origins_may_not_post(connect: Callable[..., Client]) -> None:
    client = connect()
    answer = client.ask("POST", "/topics/a", ("origin", "https://evil.example"), body=b"")
    assert (answer.status, answer["access-control-allow-origin"]) == (403, None)
    assert client.ask("POST", "/topics/a", ("origin", "http://gateway.example"), body=b"").status == 201
    assert client.ask("POST", "/topics/a", ("origin", "http://[bad"), body=b"").status == 403


def test_allowed_origins(connect: Callable[..., Client]) -> None:
    client = connect(HttpOptions(cors_origins=("https://app.example",)))
    origin = ("origin", "https://app.example")
    answer = client.ask("POST", "/topics/a", origin, body=b"")
    assert (answer.status, answer["access-control-allow-origin"]) == (201, "https://app.example")
    preflight = client.ask(
        "OPTIONS",
        "/topics/a",
        origin,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "content-type, ce-id"),
    )
    assert preflight.status == 204
    assert preflight["access-control-allow-headers"] == "content-type, ce-id"
    assert preflight["access-control-allow-methods"] == "DELETE, GET, HEAD, POST, PUT"
    other = client.ask("OPTIONS", "/topics/a", ("origin", "https://b"), ("access-control-request-method", "POST"))
    assert other["access-control-allow-methods"] is None
    assert other["vary"] == "origin"


def test_the_last_values_of_a_filter(connect: Callable[..., Client]) -> None:
    client = connect()
    for address, body in (("s/1/t", b"old"), ("s/1/t", b"1"), ("s/2/t", b"2"), ("s/2/h", b"3"), ("s/3/t", b"4")):
        assert client.ask("POST", f"/topics/{address}", body=body).status == 201
    answer = client.ask("GET", "/topics/s/+/t?limit=2")
    assert (answer.status, answer["content-type"]) == (200, "application/cloudevents-batch+json")
    assert [event["subject"] for event in answer.json] == ["s/1/t", "s/2/t"]
    assert answer["link"] == '</topics/s/%2B/t?limit=2&after=s%2F2%2Ft>; rel="next"'
    following = client.ask("GET", "/topics/s/%2B/t?limit=2&after=s%2F2%2Ft")
    assert [event["subject"] for event in following.json] == ["s/3/t"]
    assert following["link"] is None
    assert len(client.ask("GET", "/topics/%23").json) == 4
    assert client.ask("GET", "/topics/none/%23").json == []
    for bad in ("s/%23?limit=0", "s/%23?limit=1001", "s/%23?other=1"):
        assert client.ask("GET", f"/topics/{bad}").status == 400


# ---- /timers


def test_what_is_to_be_delivered_later_can_be_called_off(connect: Callable[..., Client]) -> None:
    client = connect()
    timer = client.ask("POST", "/topics/a?delay=5", body=b"").json["timer"]
    client.gateway.timers = {timer}
    assert client.ask("DELETE", f"/timers/{timer}?x=1").status == 400
    assert client.ask("DELETE", f"/timers/{timer}").status == 204
    assert client.ask("DELETE", f"/timers/{timer}").status == 404
    assert client.ask("DELETE", "/timers/nonsense").status == 404
    assert client.ask("DELETE", "/timers/").status == 404
    assert client.ask("GET", f"/timers/{timer}")["allow"] == "DELETE, OPTIONS"


# ---- /subscribe


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/subscribe", ()),
        ("/subscribe?filter=", ()),
        ("/subscribe?filter=a%23", ()),
        ("/subscribe?filter=a&from=1", ()),
        ("/subscribe?" + "&".join(f"filter=a/{n}" for n in range(65)), ()),
        ("/subscribe?filter=a", (("last-event-id", "nonsense"),)),
        ("/subscribe?filter=a", (("last-event-id", "0x1.0"),)),
    ],
)
def test_a_bad_subscription_is_refused(
    connect: Callable[..., Client], target: str, headers: tuple[tuple[str, str], ...]
) -> None:
    client = connect()
    assert client.ask("GET", target, *headers).status == 400
    assert client.gateway.subscriptions == {}


def test_head_of_a_stream_is_its_head(connect: Callable[..., Client]) -> None:
    client = connect()
    for target in ("/subscribe?filter=a", "/kv?prefix=a&watch"):
        answer = client.ask("HEAD", target)
        assert (answer.status, answer["content-type"], answer.body) == (200, "text/event-stream", b"")
        assert answer["content-length"] is None, "a GET would have had no length either (RFC 9110, 8.6)"
    assert client.ask("GET", "/topics").status == 200, "the connection goes on"
    assert not any(isinstance(effect, Subscribe) for effect in client.gateway.effects)


def test_route_rules_name_the_address(connect: Callable[..., Client]) -> None:
    client = connect(HttpOptions(event_routes=(EventRoute(type="com.example.*", address="routed/{id}"),)))
    client.ask("POST", "/events", *CE_HEADERS, body=b"")
    client.ask("POST", "/events", STRUCTURED, body=json.dumps({**EVENT, "subject": "s"}).encode())
    client.ask("POST", "/events", BATCH, body=json.dumps([{**EVENT, "id": "A-2"}]).encode())
    client.ask("POST", "/topics/here", *CE_HEADERS, body=b"")
    assert [m.address for m in client.gateway.messages] == ["routed/A-1", "routed/A-1", "routed/A-2", "here"]
