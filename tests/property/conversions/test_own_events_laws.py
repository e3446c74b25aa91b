"""Every event that the gateway makes of a plain message, whatever its protocol, is one that the gateway reads."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.amqp.codec.properties import read_properties
from adapters.amqp.codec.property_fields import edited
from adapters.amqp.events import AmqpEventCodec
from adapters.cloudevents import (
    BATCH_PROTOBUF,
    NATIVE,
    STRUCTURED_AVRO,
    STRUCTURED_JSON,
    STRUCTURED_PROTOBUF,
    to_avro,
    to_batch,
    to_protobuf,
    to_protobuf_batch,
    to_structured,
)
from adapters.coap.messages.mapping import make_plan
from adapters.coap.messages.request import CoapRequest
from adapters.coap.messages.settings import CoapOptions
from adapters.http import HttpOptions
from adapters.http.handlers.messages import message_response, read_events, read_message
from adapters.http.handlers.sinks import sink_request
from adapters.http.wire.request import HttpError, HttpRequest
from adapters.mqtt.codec.packet_type import PacketType
from adapters.mqtt.codec.primitives import PacketReader
from adapters.mqtt.codec.properties import Properties, decode_properties
from adapters.mqtt.messages.messages import Template
from adapters.mqtt.messages.sinks import sink_tail
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.principal import Principal
from store.api.message import Message, decode, encode
from tests.support.process.examples import examples

NOW_MS = 1_700_000_000_123
ADDRESS = "a/b"
USER = Principal(name="u", device="u")

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["", "json", "a\tb", "not a uri", "%41", "é", "x" * 300]
)
# Names that the gateway, the specification or its extensions give a meaning to, and others.
meant = st.sampled_from(
    [
        *("dataref", "sequence", "contentencoding", "replyto", "correlationdata", "partitionkey", "expirytime"),
        *("correlationid", "traceparent", "subject", "type", "time", "headgateaddress", "headgateproperties"),
        *("content-encoding", "Site Name", "foo", "42", "type.2"),
    ]
)
only_in_events = st.sampled_from(["id", "source", "data", "datacontenttype", "dataschema"])
names = meant | only_in_events | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
pairs = st.lists(st.tuples(names, texts), max_size=4)
MANY = [(f"n{number}", "v") for number in range(1_100)]
kinds = (
    st.none()
    | texts
    | st.sampled_from(
        ["text/pl\nain", "application/cloudevents-batch+json", "text/plain;\x01", "application/json", "text/plain; a=é"]
    )
)
bodies = st.binary(max_size=5) | st.sampled_from([b'{"a": 1}', b" [1]", b"\xff"])
correlations = st.none() | st.binary(max_size=5) | st.just(b"c-1")


def by_mqtt(kind: str | None, user: list[tuple[str, str]], correlation: bytes | None, body: bytes) -> Message:
    """Returns the message of a PUBLISH."""
    properties = Properties(content_type=kind, user=tuple(user), correlation=correlation, response_topic="r/\x01")
    return Template.of(properties).message(
        ADDRESS, body, qos=1, retain=False, device="d", principal=None, now_ms=NOW_MS
    )


def by_amqp(kind: str | None, user: list[tuple[str, str]], correlation: bytes | None, body: bytes) -> Message:
    """Returns the message of a basic.publish."""
    headers: dict[str, Any] = {name: text for name, text in user if 0 < len(name.encode()) < 256}
    if correlation is not None:
        headers["x-correlation-data"] = correlation
    short = kind if kind is not None and len(kind.encode()) < 256 else None
    raw = edited(b"\0\0", added=headers, fields={"content_type": short, "reply_to": "q"})
    return read_properties(raw).message(ADDRESS, body, device="d", trusted_gateway=False, now_ms=NOW_MS)


def by_http(kind: str | None, user: list[tuple[str, str]], correlation: bytes | None, body: bytes) -> Message:
    """Returns the message of a POST."""
    del correlation
    headers = {b"content-type": (kind or "").encode("latin-1", "replace")}
    for name, text in user:
        headers[b"ce-" + name.encode()] = "".join(f"%{byte:02X}" for byte in text.encode()).encode()
    headers[b"content-encoding"] = b"gz\x85ip"
    request = HttpRequest(method="POST", target=b"/topics/a/b?expiry=5&key=%0A", headers=(*headers.items(),), body=body)
    return read_message(request, ADDRESS, USER, HttpOptions(), now_ms=NOW_MS)


def by_coap(kind: str | None, user: list[tuple[str, str]], correlation: bytes | None, body: bytes) -> Message:
    """Returns the message of a POST."""
    query = [f"{name}={text}" for name, text in user]
    if kind is not None:
        query.append(f"ct={kind}")
    if correlation is not None:
        query.append(f"corr={urlsafe_b64encode(correlation).decode().rstrip('=')}")
    plan = make_plan(CoapRequest(path=("t", "a", "b"), query=tuple(query)), CoapOptions())
    return plan.message(body, confirmable=True, host="h", now_ms=NOW_MS)


def posted(kind: str, body: bytes) -> list[Message]:
    """Returns the messages of a request to /events."""
    return post(((b"content-type", kind.encode()),), body)


def post(headers: Any, body: bytes) -> list[Message]:
    request = HttpRequest(method="POST", target=b"/events", headers=tuple(headers), body=body)
    found, _ = read_events(request, USER, HttpOptions(), now_ms=NOW_MS)
    return [one for one in found if isinstance(one, Message)]


def by_sink(message: Message) -> list[Message]:
    request = sink_request(message, structured=False)
    return post(request.headers, request.body)


def by_answer(message: Message) -> list[Message]:
    answer = message_response(message, HttpOptions())
    return post(answer.headers, answer.body)


def by_mqtt_sink(message: Message) -> list[Message]:
    tail = sink_tail(message, version=5, structured=False, expiry_s=None, path=(), more=(), now_ms=NOW_MS)
    reader = PacketReader(tail)
    template, body = Template.of(decode_properties(reader, PacketType.PUBLISH)), reader.rest()
    return [template.message(ADDRESS, body, qos=1, retain=False, device="d", principal=None, now_ms=NOW_MS)]


def by_amqp_sink(message: Message) -> list[Message]:
    codec = AmqpEventCodec("0123456789abcdef")
    made = codec.content(message, structured=False, upstream="", header_bytes_max=1 << 20, now_ms=NOW_MS)
    assert made is not None
    template = read_properties(made.properties)
    return [template.message(ADDRESS, made.body, device="d", trusted_gateway=False, now_ms=NOW_MS)]


READERS: dict[str, Callable[..., Message]] = {"mqtt": by_mqtt, "amqp": by_amqp, "http": by_http, "coap": by_coap}
WAYS: dict[str, Callable[[Message], list[Message]]] = {
    "json": lambda message: posted(STRUCTURED_JSON, to_structured(message)),
    "batch": lambda message: posted("application/cloudevents-batch+json", to_batch([message])),
    "protobuf": lambda message: posted(STRUCTURED_PROTOBUF, to_protobuf(message)),
    "protobuf-batch": lambda message: posted(BATCH_PROTOBUF, to_protobuf_batch([message])),
    "avro": lambda message: posted(STRUCTURED_AVRO, to_avro(message)),
    "sink": by_sink,
    "answer": by_answer,
    "mqtt-sink": by_mqtt_sink,
    "amqp-sink": by_amqp_sink,
}


SAYINGS = st.tuples(kinds, pairs, correlations, bodies)


@pytest.mark.parametrize("source", READERS)
@settings(max_examples=examples(60), deadline=None)
@example(said=(None, MANY, None, b""))
@given(said=SAYINGS)
def test_an_event_made_of_a_plain_message_is_read_again(source: str, said: Any) -> None:
    try:
        message = READERS[source](*said)
    except (Refusal, HttpError, ProtocolError):
        return  # it is no message
    message = replace(decode(encode(message)), id=message.id or "1.0")
    for way, sent in WAYS.items():
        note(way)
        (again,) = sent(message)
        assert again.native is not None
        assert NATIVE in again.native
