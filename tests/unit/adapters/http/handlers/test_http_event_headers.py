"""POST to an address with some of an event's headers."""

import json

import pytest

from adapters.cloudevents import to_avro, to_protobuf, to_protobuf_batch
from adapters.http import HttpOptions
from adapters.http.handlers.messages import message_response
from adapters.http.handlers.sinks import HEADERS_BYTES_MAX, sink_request
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http1Client

NAMED = (("ce-id", "1"), ("ce-source", "/s"), ("ce-type", "t"))


@pytest.fixture
def client() -> Http1Client:
    return Http1Client(Gateway())


def test_an_event_without_its_specversion_is_refused(client: Http1Client) -> None:
    answer = client.ask("POST", "/topics/a", *NAMED, body=b"1")
    assert answer.status == 400
    assert answer.json["attribute"] == "specversion"
    assert answer.json["detail"].startswith("specversion: is required")
    assert client.gateway.messages == []
    assert client.ask("POST", "/topics/a", ("ce-specversion", "1.0"), *NAMED, body=b"1").status == 201
    assert client.ask("GET", "/topics/a")["ce-source"] == "/s"


@pytest.mark.parametrize(
    ("name", "value"),
    [("source", "/s"), ("subject", "a"), ("dataschema", "urn:x"), ("datacontenttype", "text/plain"), ("data", "1")],
)
def test_what_only_an_event_can_have_is_not_lost_in_a_plain_message(client: Http1Client, name: str, value: str) -> None:
    answer = client.ask("POST", "/topics/a", (f"ce-{name}", value), body=b"1")
    assert (answer.status, answer.json["attribute"]) == (400, "specversion")
    assert client.gateway.messages == []


@pytest.mark.parametrize("left_out", ["id", "source", "type"])
def test_an_event_without_another_attribute_is_refused(client: Http1Client, left_out: str) -> None:
    headers = [header for header in (("ce-specversion", "1.0"), *NAMED) if header[0] != f"ce-{left_out}"]
    answer = client.ask("POST", "/topics/a", *headers, body=b"1")
    assert (answer.status, answer.json["attribute"]) == (400, left_out)


def test_a_plain_message_may_have_an_id_and_a_type(client: Http1Client) -> None:
    headers = (("ce-id", "7"), ("ce-type", "t"), ("ce-zone", "north"))
    assert client.ask("POST", "/topics/a", *headers, body=b"1").status == 201
    (message,) = client.gateway.messages
    assert (message.id, message.type, message.properties) == ("7", "t", (("zone", "north"),))


@pytest.mark.parametrize("coding", ["gzip", "gzip, br", "gzip,br"])
def test_a_body_is_given_with_all_the_codings_that_it_came_with(client: Http1Client, coding: str) -> None:
    client.ask("POST", "/topics/a", ("content-encoding", coding), body=b"1")
    assert client.ask("GET", "/topics/a")["content-encoding"] == coding


@pytest.mark.parametrize(
    ("prefer", "whole"),
    [
        ("handling=lenient", False),
        ('handling="lenient"', False),
        ("respond-async, Handling = Lenient; x=y", False),
        ("handling=strict, handling=lenient", True),
        ("wait=1; handling=lenient", True),
    ],
)
def test_the_first_handling_that_a_client_prefers_counts(client: Http1Client, prefer: str, *, whole: bool) -> None:
    batch = b'[{"specversion":"1.0","id":"1","source":"/s","type":"t"},5]'
    headers = (("content-type", "application/cloudevents-batch+json"), ("prefer", prefer))
    assert client.ask("POST", "/events", *headers, body=batch).status == (400 if whole else 207)


@pytest.mark.parametrize(("count", "status"), [(10_000, 207), (10_001, 413)])
def test_a_batch_whose_events_are_answered_one_by_one_has_a_limit(client: Http1Client, count: int, status: int) -> None:
    """A body of 4 MiB had 156 MB of answers, and was 4 KB when it was compressed."""
    headers = (("content-type", "application/cloudevents-batch+json"), ("prefer", "handling=lenient"))
    answer = client.ask("POST", "/events", *headers, body=b"[%b]" % b",".join([b"{}"] * count))
    assert answer.status == status
    assert client.gateway.messages == []


@pytest.mark.parametrize("data", [True, False], ids=["plain", "other"])
@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_a_batch_has_a_limit(form: str, *, data: bool) -> None:
    """One of 70,000 events in 4 MiB held up everybody else for seconds. Those without data are read one by one."""
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", **({"data": 1} if data else {})}
    for count, status in ((5, 200), (6, 413)):
        client = Http1Client(Gateway(HttpOptions(max_batch_events=5)))
        body = json.dumps([event] * count).encode()
        if form == "protobuf":
            body = to_protobuf_batch([Message(address="a", id="1", body=b"1" if data else b"")] * count)
        answer = client.ask("POST", "/events", ("content-type", f"application/cloudevents-batch+{form}"), body=body)
        assert answer.status == status
        assert len(client.gateway.messages) == (count if status == 200 else 0)
        assert status == 200 or answer.json["detail"] == "a batch has at most 5 events"


def test_an_event_of_too_many_attributes_is_refused(client: Http1Client, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    kind = ("content-type", "application/cloudevents+json")
    most = {**event, **{f"k{number}": number for number in range(996)}}
    assert client.ask("POST", "/events", kind, body=json.dumps(most).encode()).status == 200
    answer = client.ask("POST", "/events", kind, body=json.dumps({**most, "more": "1"}).encode())
    assert (answer.status, answer.json["detail"]) == (413, "an event has at most 1000 attributes")
    message = Message(address="a", id="1", properties=tuple((f"k{number}", "v") for number in range(1_001)))
    monkeypatch.setattr("adapters.cloudevents.event.WRITTEN_MAX", 2_000)  # we write none of so many
    for kind_, body in (("protobuf", to_protobuf(message)), ("avro", to_avro(message))):
        header = ("content-type", f"application/cloudevents+{kind_}")
        assert client.ask("POST", "/events", header, body=body).status == 413


@pytest.mark.parametrize(("origin", "granted"), [("Sender.example", True), ("other.example", False)])
def test_a_sender_of_events_is_known_by_its_name_in_any_case(origin: str, *, granted: bool) -> None:
    client = Http1Client(Gateway(HttpOptions(webhook_origins=("sender.EXAMPLE",))))
    answer = client.ask("OPTIONS", "/events", ("webhook-request-origin", origin))
    assert answer["webhook-allowed-origin"] == (origin if granted else None)


def test_a_sink_is_told_where_an_answer_goes():
    """In binary mode as in structured mode, which has `replyto`."""
    message = Message(address="commands/dev42", id="1", reply_to="answers/a b", correlation=b"\xff\x00")
    assert (
        dict(sink_request(message, structured=False).headers).items()
        >= {
            b"x-reply-to": b"answers/a%20b",
            b"x-correlation-data": b"/wA=",
        }.items()
    )
    named = Message(address="commands/dev42", id="1", correlation=b"c1")
    headers = dict(sink_request(named, structured=False).headers)
    assert headers[b"ce-correlationid"] == b"c1"
    assert headers.keys().isdisjoint({b"x-reply-to", b"x-correlation-data"})


@pytest.mark.parametrize(("told", "beside"), [("c", None), ("other", "Yw=="), (None, "Yw==")])
def test_a_correlation_that_the_event_does_not_tell_is_beside_it(told: str | None, beside: str | None) -> None:
    native = {"cloudevents": {"source": "/s", "correlationid": told}}
    message = Message(address="a", id="1", type="t", correlation=b"c", native=native)
    headers = dict(message_response(message, HttpOptions()).headers)
    assert headers.get(b"ce-correlationid") == (None if told is None else told.encode())
    assert headers.get(b"x-correlation-data") == (None if beside is None else beside.encode())


EVENT_TYPES = (
    "application/cloudevents-batch+json",
    "application/cloudevents+json; charset=utf-8",
    "Application/CloudEvents+protobuf",
    "application/cloudevents+xml",
)


@pytest.mark.parametrize("kind", EVENT_TYPES)
@pytest.mark.parametrize("native", [None, {"cloudevents": {"source": "/s"}}], ids=["plain", "event"])
def test_a_body_that_names_another_address_is_data_to_a_sink(client: Http1Client, kind: str, native: object) -> None:
    """A receiver goes by the content type: it would store the events in the body, at addresses of their own."""
    inner = b'[{"specversion":"1.0","id":"9","source":"/x","type":"t","subject":"admin/valve"}]'
    message = Message("public/a", inner, id="1", content_type=kind, native=native, type="t")
    request = sink_request(message, structured=False)
    headers = [(name.decode(), value.decode()) for name, value in request.headers]
    assert client.ask("POST", "/events", *headers, body=request.body).status == 200
    (stored,) = client.gateway.messages
    assert (stored.id, stored.body, stored.content_type) == ("1", inner, kind)
    assert "admin" not in stored.address


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_a_body_that_names_another_address_is_data_to_a_reader(client: Http1Client, kind: str) -> None:
    inner = b'[{"specversion":"1.0","id":"9","source":"/x","type":"t","subject":"admin/valve"}]'
    client.gateway.frames.append([Message("public/a", inner, id="1", content_type=kind)])
    answer = client.ask("GET", "/topics/public/a")
    assert answer["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert (answer.json["subject"], answer.json["datacontenttype"]) == ("public/a", kind)
    assert answer["content-security-policy"] == "sandbox"
    ordinary = Message("public/a", b"{}", id="2", content_type="application/vnd.cloudevents+json")
    client.gateway.frames.append([ordinary])
    answer = client.ask("GET", "/topics/public/a")
    assert (answer["content-type"], answer.body) == ("application/vnd.cloudevents+json", b"{}")


@pytest.mark.parametrize("text", ["é" * 40_000, "x" * HEADERS_BYTES_MAX], ids=["escaped", "plain"])
def test_attributes_that_servers_refuse_as_headers_are_in_the_body(client: Http1Client, text: str) -> None:
    message = Message("public/a", b"1", id="1", properties=(("note", text),))
    request = sink_request(message, structured=False)
    assert sum(len(name) + len(value) for name, value in request.headers) < 100
    assert json.loads(request.body)["note"] == text
    short = Message("public/a", b"1", id="1", properties=(("note", "x" * (HEADERS_BYTES_MAX - 400)),))
    assert sink_request(short, structured=False).body == b"1"
