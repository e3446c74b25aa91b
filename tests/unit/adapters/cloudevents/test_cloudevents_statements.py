"""Statements of CloudEvents 1.0.2, its formats and bindings.

Those of the core, of JSON, and of the bindings for HTTP, MQTT and AMQP are in `tests/conformance/cloudevents.toml`.
Those of other formats and of extensions are in a table here: each names the test that holds it, and one whose test is
gone fails.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from adapters.amqp.codec.properties import properties_of
from adapters.amqp.codec.property_fields import read_fields
from adapters.cloudevents import (
    DEFAULT_TYPE,
    OURS,
    attributes_of,
    from_attributes,
    from_avro,
    from_protobuf,
    from_structured,
    to_avro,
    to_protobuf,
    to_structured,
    wrap,
)
from adapters.http.handlers.sinks import event_attributes
from gateway.domain.errors import Refusal
from store.api.message import Message
from tests.support.http.http_driver import Gateway, Http1Client

EVENT = {"specversion": "1.0", "id": "A-1", "source": "/sensors/7", "type": "com.example.reading"}
HEADERS = tuple((f"ce-{name}", value) for name, value in EVENT.items())
JSON_EVENT = ("content-type", "application/cloudevents+json")
JSON_BATCH = ("content-type", "application/cloudevents-batch+json")
NOW_MS = 1_700_000_000_000

STATEMENTS = {
    "dataref: it is a URI-reference": "statements: references_are_of_the_grammar_of_rfc_3986",
    "dataref: it may stand beside data, and in its place": "statements: a_reference_to_data_goes_through_every_form",
    "sequence: it is a non-empty string": "statements: a_sequence_is_not_empty",
    "protobuf 2, 3: what others write is read, and written again": (
        "protobuf: what_the_official_implementation_writes_is_read_and_written_again"
    ),
    "protobuf 3: times keep their nanoseconds": "protobuf: a_time_keeps_its_nanoseconds",
    "protobuf 4: batches": "protobuf: a_batch_names_the_event_that_is_none",
    "avro 2: attributes keep their types": "avro: attributes_keep_their_types",
    "avro 3: data of every type": "avro: data_of_every_type",
    "avro 4: an event is written as the schema says": "avro: an_event_byte_by_byte",
}

_HERE = Path(__file__).parent
FILES = {
    "statements": Path(__file__),
    "protobuf": _HERE / "test_protobuf.py",
    "avro": _HERE / "test_avro.py",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_has_its_test(statement: str) -> None:
    where, name = STATEMENTS[statement].split(": ")
    assert re.search(rf"^(async )?def test_{name}\(", FILES[where].read_text("utf-8"), re.MULTILINE)


def structured(**members: Any) -> Message:
    body = json.dumps({**EVENT, **members}).encode()
    return from_structured(body, now_ms=NOW_MS, protocol="http", device="d")


def binary(**attributes: str) -> Message:
    event = {**EVENT, **attributes}
    return from_attributes(event, b"", content_type=None, now_ms=NOW_MS, protocol="http", device="d")


def client() -> Http1Client:
    return Http1Client(Gateway())


# ---- attributes


def test_our_own_attributes_have_short_names() -> None:
    extensions = {"headgatehandle", "headgatedeliveries", "headgatequeue", "headgateoffset", "deadletterattempts"}
    named = OURS | wrap(Message(address="a/b", id="1", properties=(("A", "b"),))).keys() | extensions
    assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in named)


def test_events_that_the_gateway_makes_are_as_they_should_be() -> None:
    """Their source is the gateway's, and their id in it is the message's place in the log; the type is prefixed."""
    made = wrap(Message(address="a/b", id="1f.2"))
    assert (made["source"], made["id"], made["type"]) == ("//headgate/a", "1f.2", DEFAULT_TYPE)
    assert "." in DEFAULT_TYPE


def test_typed_extensions_are_canonical_texts_in_binary_mode() -> None:
    message = structured(yes=True, no=False, low=-(2**31), high=2**31 - 1)
    attributes = attributes_of(message)
    assert attributes is not None
    assert [attributes[name] for name in ("yes", "no", "low", "high")] == ["true", "false", "-2147483648", "2147483647"]


@pytest.mark.parametrize(
    ("text", "reference", "uri"),
    [
        ("/sensors/7", True, False),
        ("1-555-123-4567", True, False),
        ("urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66", True, True),
        ("mailto:cncf-wg-serverless@lists.cncf.io", True, True),
        ("https://u:p@example.com:8080/a%20b?q=/?#f/?", True, True),
        ("http://[2001:db8::1]:80/", True, True),
        ("//headgate/a", True, False),
        ("#fragment", True, False),
        ("./a:b", True, False),
        ("", False, False),
        ("a b", False, False),
        ("%zz", False, False),
        ("a#b#c", False, False),
        ("1-555:x", False, False),
        (":a", False, False),
        ("a[b]", False, False),
        ("http://example.com:port/", False, False),
        ("http://[::1/", False, False),
        ("http://a@b@c/", False, False),
        ("{a}", False, False),
        ("é", False, False),
    ],
)
def test_references_are_of_the_grammar_of_rfc_3986(text: str, reference: bool, uri: bool) -> None:
    for name, allowed in (("source", reference), ("dataref", reference), ("dataschema", uri)):
        if allowed:
            assert (attributes_of(binary(**{name: text})) or {})[name] == text
            continue
        with pytest.raises(Refusal) as refused:
            binary(**{name: text})
        assert refused.value.detail.startswith(f"{name}: ")


@pytest.mark.parametrize("text", ["//" + "a" * 60_000 + "é", "//" + "a:" * 30_000, "http://" + "%41" * 20_000 + "]"])
def test_a_long_text_that_is_no_reference_takes_no_time(text: str) -> None:
    """The grammar is matched without going back: what is read twice for each character would take minutes here."""
    with pytest.raises(Refusal):
        binary(source=text)


def test_a_sequence_is_not_empty() -> None:
    with pytest.raises(Refusal, match=r"^sequence: "):
        binary(sequence="")
    assert dict(binary(sequence="0001").properties) == {"sequence": "0001"}


@pytest.mark.parametrize("members", [{}, {"data": {"a": 1}}, {"data_base64": "AAE="}])
def test_a_reference_to_data_goes_through_every_form(members: dict[str, Any]) -> None:
    """The claim check: data lies elsewhere, or here too. The gateway neither fetches it nor drops what it has."""
    event = {**EVENT, "dataref": "https://store.example.com/a?b#c", "datacontenttype": "application/json", **members}
    message = from_structured(json.dumps(event).encode(), now_ms=NOW_MS, protocol="http", device="d")
    assert json.loads(to_structured(message)) == event
    for write, read in ((to_protobuf, from_protobuf), (to_avro, from_avro)):
        again = read(write(message), now_ms=NOW_MS, protocol="http", device="d")
        assert (again.body, again.content_type) == (message.body, "application/json")
        assert (attributes_of(again) or {})["dataref"] == event["dataref"]
    gateway = client()
    gateway.ask("POST", "/topics/a", JSON_EVENT, body=json.dumps(event).encode())
    answer = gateway.ask("GET", "/topics/a")
    assert (answer["ce-dataref"], answer["content-type"]) == (event["dataref"], "application/json")
    assert answer.body == message.body


# ---- data


@pytest.mark.parametrize("data", [{"n": 1}, "text", 5, None, True])
def test_json_without_a_type_says_it_in_every_other_form(data: Any) -> None:
    message = structured(data=data)
    assert "datacontenttype" not in json.loads(to_structured(message)), "in its own form it leaves as it came"
    for write, read in ((to_protobuf, from_protobuf), (to_avro, from_avro)):
        assert read(write(message), now_ms=NOW_MS, protocol="http", device="d").content_type == "application/json"
    assert event_attributes(message)["datacontenttype"] == "application/json"
    gateway = client()
    gateway.ask("POST", "/topics/a", JSON_EVENT, body=to_structured(message))
    assert gateway.ask("GET", "/topics/a")["content-type"] == "application/json"
    assert read_fields(properties_of(message, now_ms=NOW_MS))["content_type"] == "application/json"


def test_a_string_of_json_is_no_document() -> None:
    message = structured(data='{"a":1}', datacontenttype="application/json")
    assert json.loads(message.body) == '{"a":1}'
    assert json.loads(to_structured(message))["data"] == '{"a":1}'


def test_a_string_of_another_type_is_its_text() -> None:
    assert structured(data='<a b="c"/>', datacontenttype="application/xml").body == b'<a b="c"/>'


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_an_event_of_64_kib_is_forwarded(mode: str) -> None:
    gateway, data = client(), "x" * (64 * 1024 - 200)
    if mode == "binary":
        answer = gateway.ask("POST", "/topics/a", *HEADERS, ("content-type", "text/plain"), body=data.encode())
    else:
        answer = gateway.ask("POST", "/topics/a", JSON_EVENT, body=json.dumps({**EVENT, "data": data}).encode())
    assert answer.status == 201
    as_event = gateway.ask("GET", "/topics/a", ("accept", JSON_EVENT[1]))
    assert len(as_event.body) > 64 * 1024 - 200


# ---- HTTP


def test_the_content_type_of_binary_mode_is_datacontenttype() -> None:
    gateway = client()
    event = {**EVENT, "datacontenttype": "text/xml; charset=utf-8", "data": "<a/>"}
    gateway.ask("POST", "/topics/a", JSON_EVENT, body=json.dumps(event).encode())
    answer = gateway.ask("GET", "/topics/a")
    assert answer["content-type"] == "text/xml; charset=utf-8"
    assert answer["ce-datacontenttype"] is None
    gateway.ask("POST", "/topics/b", *HEADERS, ("content-type", "text/xml"), body=b"<a/>")
    as_event = gateway.ask("GET", "/topics/b", ("accept", JSON_EVENT[1]))
    assert as_event.json["datacontenttype"] == "text/xml"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro € 😀"),
        ("Euro%20%e2%82%ac", "Euro €"),
        ("%41%62c", "Abc"),
        ('"a \\"b\\" \\\\c%20"', 'a "b" \\c '),
        ('"Euro%20%E2%82%AC"', "Euro €"),
        ("100%25", "100%"),
        ("plain text", "plain text"),
    ],
)
def test_header_values_are_decoded(header: str, text: str) -> None:
    gateway = client()
    assert gateway.ask("POST", "/topics/a", *HEADERS, ("ce-ext", header), body=b"").status == 201
    assert dict(gateway.gateway.messages[0].properties) == {"ext": text}


@pytest.mark.parametrize("header", ["%FF", "%C0%80", "%E2%82", "%ED%A0%80", "%F4%90%80%80", '"%FF"', "a%80b"])
def test_header_values_that_are_not_utf_8_are_refused(header: str) -> None:
    gateway = client()
    answer = gateway.ask("POST", "/topics/a", *HEADERS, ("ce-ext", header), body=b"")
    assert (answer.status, answer.json["attribute"]) == (400, "ext")
    assert gateway.gateway.messages == []


@pytest.mark.parametrize(
    ("text", "header"),
    [("Euro € 😀", "Euro%20%E2%82%AC%20%F0%9F%98%80"), ('"%', "%22%25"), ("a b", "a%20b"), ("\xa0", "%C2%A0")],
)
def test_header_values_are_encoded(text: str, header: str) -> None:
    gateway = client()
    gateway.ask("POST", "/topics/a", JSON_EVENT, body=json.dumps({**EVENT, "ext": text}).encode())
    assert gateway.ask("GET", "/topics/a")["ce-ext"] == header


def test_the_payload_says_what_the_event_is() -> None:
    gateway = client()
    others = [("ce-id", "other"), ("ce-type", "other"), ("ce-specversion", "0.3")]
    answer = gateway.ask("POST", "/topics/a", JSON_EVENT, *others, body=json.dumps(EVENT).encode())
    assert answer.status == 201
    (message,) = gateway.gateway.messages
    assert attributes_of(message) == EVENT


def test_events_of_a_batch_are_all_of_1_0() -> None:
    gateway = client()
    batch = [EVENT, {**EVENT, "specversion": "1.1"}]
    assert gateway.ask("POST", "/events", JSON_BATCH, body=json.dumps(batch).encode()).status == 400
    assert gateway.gateway.messages == []
