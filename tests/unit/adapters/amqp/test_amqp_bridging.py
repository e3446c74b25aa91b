"""Bridged messages: their properties are kept, and what would be wrong at the other broker is not."""

import msgspec
import pytest

from adapters.amqp import FACTORY
from adapters.amqp.codec.properties import properties_of, read_properties
from adapters.amqp.codec.property_fields import edited, read_fields
from adapters.amqp.codec.wire import write_table
from gateway.domain.bridge_path import PATH
from gateway.domain.errors import Cause, Refusal
from gateway.port.bridge import Destination
from store.api.message import Message

NOW_MS = 1_700_000_000_000
PLACE = Destination("shop/x", "till")
HERE, THERE = "aa01", "bb02"


def made(headers=None, **fields):
    raw = (1 << 13 | 1 << 12).to_bytes(2, "big") + write_table(headers or {"a": "1"}) + b"\x02"
    return edited(raw, fields=fields)


def codec(name="up"):
    return FACTORY.broker_codec(name, HERE)


def read(raw, upstream="", body=b"b"):
    return codec().read(raw, body, PLACE, upstream=upstream, now_ms=NOW_MS)


def forwarded(message, *, upstream="", name="up", header_bytes_max=100_000):
    found = codec(name).forwarded(
        message, upstream=upstream, fallback_id="c8.0", header_bytes_max=header_bytes_max, now_ms=NOW_MS
    )
    return None if found is None else (found.id, read_fields(found.properties))


def own(**fields):
    return Message("plant/a", b"b", NOW_MS, "mqtt", "dev42", **fields)


def test_what_is_read_has_the_place_of_the_configuration_and_leaves_as_it_came():
    raw = made({"a": "1", "n": {"b": [1]}}, user_id="somebody", app_id="till")
    message = read(raw)
    assert (message.address, message.device, message.qos) == ("shop/x", "till", 1)
    assert properties_of(message, now_ms=NOW_MS) == raw


@pytest.mark.parametrize(
    ("body", "event"),
    [
        (b'{"specversion": "1.0", "id": "7", "source": "/s", "type": "t", "data": {"a": 1.0}}', True),
        (b'{"specversion": "0.3", "id": "7", "source": "/s", "type": "t"}', False),
        (b"no JSON", False),
    ],
)
def test_a_structured_event_is_read_as_one_and_forwarded_as_it_came(body, event):
    message = read(made(content_type="application/cloudevents+json"), body=body)
    assert ("cloudevents" in message.native) is event
    found = codec("down").forwarded(message, upstream="", fallback_id="c8.0", header_bytes_max=100_000, now_ms=NOW_MS)
    assert found.body == body
    assert read_fields(found.properties)["content_type"] == "application/cloudevents+json"


def test_a_gateway_as_the_upstream_is_noted_in_the_path_and_another_broker_is_not():
    message = read(made(), upstream=THERE)
    assert dict(message.properties)[PATH] == f"{THERE} {HERE}"
    assert read_fields(properties_of(message, now_ms=NOW_MS))["headers"][PATH] == f"{THERE} {HERE}"
    assert PATH not in dict(read(made()).properties)


def test_what_has_been_here_is_not_read_again():
    assert read(made({PATH: f"{THERE} {HERE}"})) is None
    assert read(made({PATH: "cc03"})) is not None


@pytest.mark.parametrize("raw", [b"\xff\xff", made(expiration="soon"), made({"x-delay": "now"})])
def test_malformed_properties_are_refused(raw):
    with pytest.raises(Refusal) as caught:
        read(raw)
    assert caught.value.cause is Cause.MALFORMED


def test_the_user_goes_into_a_header_and_the_direct_reply_queue_nowhere():
    _, found = forwarded(own(qos=1))
    assert "user_id" not in found
    assert found["headers"]["ce-deviceid"] == "dev42"
    assert found["delivery_mode"] == 2
    message = read(made({"CC": ["x"], "x-delay": 5, "keep": 1}, reply_to="amq.rabbitmq.reply-to", user_id="u"))
    _, found = forwarded(message, name="other")
    assert "reply_to" not in found
    assert found["headers"] == {"keep": 1, "ce-deviceid": "till", PATH: HERE}
    _, found = forwarded(read(made(reply_to="answers")), name="other")
    assert found["reply_to"] == "answers"


def test_what_has_no_id_gets_the_one_of_its_place():
    assert forwarded(own())[0] == "c8.0"
    id_, found = forwarded(own(id="m1"))
    assert (id_, found["message_id"]) == ("m1", "m1")


def test_the_time_to_live_is_what_is_left():
    assert forwarded(own(expires_at_ms=NOW_MS + 1_500))[1]["expiration"] == "1500"
    message = read(made(expiration="60000"))
    later = msgspec.structs.replace(message, expires_at_ms=NOW_MS + 10)
    assert forwarded(later, name="other")[1]["expiration"] == "10"
    assert "expiration" not in forwarded(own())[1]


def test_what_was_read_by_this_bridge_or_has_been_there_is_not_forwarded():
    assert forwarded(read(made())) is None
    assert forwarded(read(made(), upstream=THERE), name="other", upstream=THERE) is None
    assert forwarded(read(made(), upstream=THERE), name="other", upstream="cc03") is not None
    assert forwarded(own(properties=((PATH, " ".join("abcdefghijklmnop")),))) is None


def test_headers_that_no_frame_holds_are_left_out():
    message = own(properties=tuple((f"n{n}", "x" * 100) for n in range(50)))
    _, found = forwarded(message, header_bytes_max=2_000)
    assert found["headers"]["x-headers-left-out"] > 30


def received(message):
    """Returns a message as another gateway stores it that believes the bridge's user, and its headers."""
    found = codec().forwarded(message, upstream="", fallback_id="c8.0", header_bytes_max=100_000, now_ms=NOW_MS)
    template = read_properties(found.properties)
    stored = template.message("plant/a", found.body, device="bridge", trusted_gateway=True, now_ms=NOW_MS)
    return stored, read_fields(found.properties)["headers"]


@pytest.mark.parametrize("device", ["dev42", ""])
@pytest.mark.parametrize("kind", ["property", "extension", "header", "number"])
def test_no_publisher_speaks_for_another_device_through_a_bridge(kind, device):
    """A gateway that lets the bridge's user speak for devices takes the header for the bridge's word."""
    if kind in {"header", "number"}:
        claim = "victim" if kind == "header" else 42
        raw = made({"ce-deviceid": claim, "keep": 1}, user_id="somebody")
        message = read_properties(raw).message("plant/a", b"b", device="somebody", trusted_gateway=False, now_ms=NOW_MS)
        message = msgspec.structs.replace(message, device=device)
    elif kind == "property":
        claim, message = "victim", own(properties=(("ce-deviceid", "victim"),))
    else:
        native = {"cloudevents": {"source": "/s"}}
        claim, message = "victim", own(id="1", type="t", properties=(("deviceid", "victim"),), native=native)
    message = msgspec.structs.replace(message, device=device)
    stored, headers = received(message)
    assert stored.device == (device or "bridge")
    assert headers.get("ce-deviceid") == (device or None)
    assert headers["ce-deviceid.2"] == claim


def test_a_device_that_its_publisher_has_said_itself_is_said_once():
    raw = made({"ce-deviceid": "dev42", "ce-deviceid.2": "a"})
    message = read_properties(raw).message("plant/a", b"b", device="gw", trusted_gateway=True, now_ms=NOW_MS)
    stored, headers = received(message)
    assert (message.device, stored.device) == ("dev42", "dev42")
    assert headers == {PATH: HERE, "ce-deviceid": "dev42", "ce-deviceid.2": "a"}
    _, headers = received(msgspec.structs.replace(message, device="other"))
    assert headers == {PATH: HERE, "ce-deviceid": "other", "ce-deviceid.2": "a", "ce-deviceid.3": "dev42"}


CLAIMS = {
    "ce-deviceid": "victim",
    "ce-id": "i",
    "ce-partitionkey": "k",
    "timestamp_in_ms": "5",
    "traceparent": "t",
    "x-correlation-data": "c",
    "x-delay": "60000",
    "x-reply-to-topic": "elsewhere",
    "x-retain": "true",
    "x-routing-key": "admin.valve",
    "CC": "a",
    "BCC": "b",
    **{f"{prefix}{name}": "1.0" for prefix in ("ce-", "cloudEvents_", "cloudEvents:") for name in ("specversion",)},
}


def test_properties_of_other_protocols_are_no_fields_to_the_next_gateway():
    properties = (*CLAIMS.items(), ("ce-source", "/s"), ("ce-type", "t"), ("ce-subject", "admin/valve"))
    stored, _ = received(own(properties=properties))
    assert (stored.key, stored.reply_to, stored.correlation, stored.traceparent) == (None, None, None, None)
    assert (stored.id, stored.retain, stored.time_ms, stored.deliver_at_ms) == ("c8.0", False, NOW_MS, None)
    assert "cloudevents" not in stored.native
    others = {name: text for name, text in stored.properties if name != PATH}
    assert others == {f"{name}.2" if name in CLAIMS else name: text for name, text in properties}


def test_properties_beside_an_event_are_none_of_its_attributes():
    names = ("ce-subject", "cloudEvents_subject", "cloudEvents:source", "ce-partitionkey")
    native = {"cloudevents": {"source": "/s", "time": None}}
    message = own(id="1", type="t", native=native, properties=tuple((name, "claim") for name in names))
    stored, _ = received(message)
    assert {n: t for n, t in stored.properties if n not in {PATH, "deviceid"}} == {f"{n}.2": "claim" for n in names}
    assert stored.native["cloudevents"] == {"source": "/s", "time": None}
    assert stored.key is None


def test_fields_of_a_message_are_fields_to_the_next_gateway():
    said = {"id": "i", "key": "k", "reply_to": "r/1", "correlation": b"\xff", "traceparent": "t", "retain": True}
    stored, _ = received(own(**said, properties=(("traceparent", "other"),)))
    assert {name: getattr(stored, name) for name in said} == said
    assert ("traceparent.2", "other") in stored.properties
