"""Messages as events for brokers of AMQP 0-9-1."""

import msgspec
import pytest

from adapters.amqp import FACTORY
from adapters.amqp.codec.properties import properties_of, read_properties
from adapters.amqp.codec.property_fields import edited, read_fields
from adapters.amqp.codec.wire import Timestamp
from adapters.cloudevents import to_structured
from gateway.domain.bridge_path import PATH
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message

NOW_MS = 1_700_000_000_000
HERE, THERE = "aa01", "bb02"
EVENT = {
    "ce-specversion": "1.0",
    "ce-id": "e1",
    "ce-source": "/plant/7",
    "ce-type": "reading",
    "ce-colour": "rote Grütze",
}


def message(**fields):
    return Message("plant/a", b'{"c":1}', NOW_MS, "http", "dev42", id="m1", **fields)


def content(one, *, structured=False, upstream="", header_bytes_max=100_000):
    return FACTORY.event_codec(HERE).content(
        one, structured=structured, upstream=upstream, header_bytes_max=header_bytes_max, now_ms=NOW_MS
    )


def event(**changes):
    native = {"cloudevents": {"source": "/plant/7", "time": None, "subject": "s"}}
    made = message(type="reading", content_type="application/json", native=native, properties=(("colour", "rot"),))
    return msgspec.structs.replace(made, **changes)


def test_an_event_in_binary_mode_is_read_back_as_it_was():
    found = content(event())
    fields = read_fields(found.properties)
    assert found.body == b'{"c":1}'
    assert (fields["content_type"], fields["message_id"], fields["delivery_mode"]) == ("application/json", "m1", 2)
    assert fields["timestamp"] == NOW_MS // 1_000
    assert "user_id" not in fields
    headers = fields["headers"]
    assert headers.pop(PATH) == HERE
    assert headers == {
        "ce-specversion": "1.0",
        "ce-id": "m1",
        "ce-source": "/plant/7",
        "ce-type": "reading",
        "ce-subject": "s",
        "ce-colour": "rot",
        "ce-headgateaddress": "plant/a",
    }
    again = read_properties(found.properties).message("x", found.body, device="d", trusted_gateway=False, now_ms=NOW_MS)
    assert (again.id, again.type, again.content_type) == ("m1", "reading", "application/json")
    assert again.native["cloudevents"]["source"] == "/plant/7"


def test_a_message_that_never_was_an_event_becomes_one_and_keeps_its_properties():
    properties = (("zone", "1"), ("A b", "2"), ("A b", "3"), ("CC", "x"))
    headers = read_fields(content(message(properties=properties)).properties)["headers"]
    assert (headers["ce-type"], headers["ce-source"]) == ("headgate.message.v1", "//headgate/plant")
    assert (headers["ce-zone"], headers["A b"], headers["A b.2"]) == ("1", "2", "3")
    assert "CC" not in headers  # which the broker would act upon
    assert '["CC","x"]' in headers["ce-headgateproperties"]


@pytest.mark.parametrize("made", [message, event], ids=["plain", "event"])
def test_repeats_with_the_same_text_are_kept(made):
    properties = (("foo", "1"), ("foo", "1"), ("foo", "1"), ("id", "m1"), ("traceparent", "B"))
    one = made(properties=properties, traceparent="A")
    headers = read_fields(content(one).properties)["headers"]
    assert (headers["ce-foo"], headers["foo"], headers["foo.2"]) == ("1", "1", "1")
    assert (headers["id"], headers["traceparent"], headers["traceparent.2"]) == ("m1", "A", "B")
    if made is event:
        headers = read_fields(properties_of(one, now_ms=NOW_MS))["headers"]
        assert (headers["ce-foo"], headers["foo"], headers["foo.2"], headers["id"]) == ("1", "1", "1", "m1")


def test_properties_are_no_attributes_of_the_event():
    names = ("ce-dataschema", "cloudEvents_subject", "x-retain", "ce-deviceid")
    found = content(event(properties=tuple((name, "claim") for name in names)))
    again = read_properties(found.properties).message("x", b"", device="d", trusted_gateway=True, now_ms=NOW_MS)
    assert again.native["cloudevents"] == event().native["cloudevents"]
    assert (again.retain, again.device) == (False, "d")
    assert {name: text for name, text in again.properties if name != PATH} == {f"{name}.2": "claim" for name in names}


def test_properties_that_are_headers_are_not_counted_as_left_out():
    headers = read_fields(content(message(properties=(("A b", "x" * 5_000),))).properties)["headers"]
    assert headers["A b"] == "x" * 5_000
    assert headers.keys().isdisjoint({"ce-headgateproperties", "ce-headgateomitted"})


@pytest.mark.parametrize(
    "correlation", [b"c1", b"\xff\x00", "é".encode() * 200, None], ids=["text", "bytes", "long", "none"]
)
@pytest.mark.parametrize("made", [message, event], ids=["plain", "event"])
def test_the_answer_to_an_event_finds_its_way(made, correlation):
    found = content(made(reply_to="answers/a b", correlation=correlation))
    again = read_properties(found.properties).message("x", b"", device="d", trusted_gateway=False, now_ms=NOW_MS)
    assert (again.reply_to, again.correlation) == ("answers/a b", correlation)
    assert read_fields(found.properties).get("correlation_id") == ("c1" if correlation == b"c1" else None)
    queue = made(native={**(made().native or {}), "amqp": {"reply_queue": "q", "properties": b""}})
    assert read_fields(content(queue).properties)["headers"]["x-reply-to-topic"] == "$amqp//q"


def test_structured_mode_has_the_event_as_json():
    found = content(event(), structured=True)
    fields = read_fields(found.properties)
    assert fields["content_type"] == "application/cloudevents+json; charset=utf-8"
    assert fields["headers"] == {PATH: HERE}
    assert msgspec.json.decode(found.body)["data"] == {"c": 1}


@pytest.mark.parametrize("kind", ["application/cloudevents+json", "application/cloudevents-batch+json"])
def test_a_body_that_is_an_event_itself_is_the_data_of_one(kind):
    found = content(message(content_type=kind))
    assert read_fields(found.properties)["content_type"] == "application/cloudevents+json; charset=utf-8"
    document = msgspec.json.decode(found.body)
    assert (document["subject"], document["datacontenttype"], document["data"]) == ("plant/a", kind, {"c": 1})


def test_what_is_left_of_its_time_goes_along():
    assert "expiration" not in read_fields(content(event()).properties)
    assert read_fields(content(event(expires_at_ms=NOW_MS + 5)).properties)["expiration"] == "5"


def test_what_is_too_long_for_a_short_string_is_a_header():
    long = "x" * 300
    fields = read_fields(content(message(content_type=f"a/{long}", content_encoding=long)).properties)
    assert "content_type" not in fields
    assert "content_encoding" not in fields
    assert fields["headers"]["ce-datacontenttype"] == f"a/{long}"
    assert fields["headers"]["x-content-encoding"] == long
    assert "message_id" not in read_fields(content(msgspec.structs.replace(message(), id=long)).properties)


def test_attributes_that_no_frame_holds_are_refused():
    with pytest.raises(Refusal, match="structured") as raised:
        content(message(properties=(("a", "x" * 5_000),)), header_bytes_max=4_096)
    assert raised.value.cause is Cause.TOO_LARGE


def test_between_gateways_the_path_keeps_events_from_going_round():
    been = message(properties=((PATH, f"{THERE} {HERE}"),))
    assert content(been, upstream=THERE) is None
    fields = read_fields(content(been).properties)
    assert fields["headers"][PATH] == f"{THERE} {HERE}"


def taken(headers):
    raw = edited(b"\0\0", added={**EVENT, **headers})
    return read_properties(raw).message("x", b"", device="d", trusted_gateway=False, now_ms=NOW_MS)


def test_integers_and_booleans_keep_their_types():
    numbers = {"low": -(2**31), "high": 2**31 - 1, "yes": True, "no": False, "text": "5"}
    one = taken({f"ce-{name}": value for name, value in numbers.items()})
    assert dict(one.properties) == {
        "colour": "rote Grütze",
        "low": "-2147483648",
        "high": "2147483647",
        "yes": "true",
        "no": "false",
        "text": "5",
    }
    document = msgspec.json.decode(to_structured(one))
    assert {name: document[name] for name in numbers} == numbers
    headers = read_fields(content(msgspec.structs.replace(one, native=event_alone(one))).properties)["headers"]
    again = {name: headers[f"ce-{name}"] for name in numbers}
    assert again == numbers
    assert [type(value) for value in again.values()] == [type(value) for value in numbers.values()]
    as_consumed = read_fields(properties_of(msgspec.structs.replace(one, native=event_alone(one)), now_ms=NOW_MS))
    assert {name: as_consumed["headers"][f"ce-{name}"] for name in numbers} == numbers


def event_alone(one):
    """Returns what a message that came by another protocol has of an event."""
    return {"cloudevents": one.native["cloudevents"]}


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_what_is_no_integer_of_cloudevents_is_text(value):
    assert msgspec.json.decode(to_structured(taken({"ce-n": value})))["n"] == str(value)


def test_attributes_of_the_specification_and_ours_have_no_numbers():
    document = msgspec.json.decode(to_structured(taken({"ce-id": 7, "ce-subject": 8, "ce-headgateomitted": 9})))
    assert (document["id"], document["subject"], "headgateomitted" in document) == ("7", "8", False)


def test_a_timestamp_of_amqp_is_the_time_of_an_event():
    one = taken({"ce-time": Timestamp(1_500_000_000), "ce-expirytime": Timestamp(1_600_000_000)})
    assert (one.time_ms, one.expires_at_ms) == (1_500_000_000_000, 1_600_000_000_000)
    document = msgspec.json.decode(to_structured(one))
    assert (document["time"], document["expirytime"]) == ("2017-07-14T02:40:00Z", "2020-09-13T12:26:40Z")
