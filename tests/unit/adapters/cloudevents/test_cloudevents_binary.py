"""Context attributes to the domain message and back."""

import json

import msgspec
import pytest

from adapters.cloudevents import NATIVE, attributes_of, from_attributes, placed, split, wrap
from gateway.domain.errors import Cause, Refusal
from store.api.message import Message, decode, encode

NOW_MS = 1_700_000_000_000
MINIMAL = {"specversion": "1.0", "id": "A-1", "source": "/sensors/7", "type": "com.example.reading"}


def read(attributes: dict[str, str], body: bytes = b"", content_type: str | None = None, **fields: object) -> Message:
    return from_attributes(
        attributes, body, content_type=content_type, now_ms=NOW_MS, protocol="http", device="dev", **fields
    )


def test_fields_go_where_the_domain_has_a_place() -> None:
    message = read(
        {
            **MINIMAL,
            "time": "2018-04-05T17:31:00Z",
            "subject": "telemetry/site1/temp",
            "partitionkey": "k",
            "correlationid": "c",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "expirytime": "2018-04-05T18:31:00Z",
            "zeta": "1",
            "alpha": "2",
        },
        b"{}",
        "application/json",
    )
    assert message == Message(
        address="telemetry/site1/temp",
        body=b"{}",
        time_ms=1_522_949_460_000,
        protocol="http",
        device="dev",
        id="A-1",
        key="k",
        type="com.example.reading",
        content_type="application/json",
        expires_at_ms=1_522_953_060_000,
        correlation=b"c",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        properties=(("zeta", "1"), ("alpha", "2")),
        native={"cloudevents": {"source": "/sensors/7", "subject": "telemetry/site1/temp"}},
    )


def test_without_time_the_arrival_counts_and_none_goes_out() -> None:
    message = read(MINIMAL)
    assert message.time_ms == NOW_MS
    assert attributes_of(message) == MINIMAL


@pytest.mark.parametrize(
    "time", ["2018-04-05T17:31:00.120Z", "2018-04-05T19:31:00.123456+02:00", "1912-06-23T00:00:00Z"]
)
def test_a_time_leaves_as_it_came(time: str) -> None:
    attributes = attributes_of(decode(encode(read({**MINIMAL, "time": time}))))
    assert attributes is not None
    assert attributes["time"] == time


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("id", None),
        ("id", ""),
        ("source", None),
        ("source", ""),
        ("source", "/a b"),
        ("source", "/%zz"),
        ("type", None),
        ("type", ""),
        ("specversion", None),
        ("specversion", "0.3"),
        ("time", "yesterday"),
        ("subject", ""),
        ("dataschema", "relative/only"),
        ("datacontenttype", "nonsense"),
        ("expirytime", "soon"),
        ("partitionkey", ""),
        ("correlationid", ""),
        ("Upper", "x"),
        ("dashed-name", "x"),
        ("", "x"),
        ("data", "x"),
        ("extension", "a\x00b"),
        ("extension", "a\x85b"),
        ("extension", "a\ufffeb"),
        ("extension", "a\U0001ffffb"),
        ("extension", "a\ud800b"),
    ],
)
def test_a_refusal_names_the_attribute(attribute: str, value: str | None) -> None:
    attributes = {name: text for name, text in {**MINIMAL, attribute: value}.items() if text is not None}
    with pytest.raises(Refusal) as refused:
        read(attributes)
    assert refused.value.cause is Cause.MALFORMED
    assert refused.value.detail.startswith(f"{attribute or repr('')}: ")


def test_two_content_types_are_refused() -> None:
    with pytest.raises(Refusal, match="datacontenttype"):
        read({**MINIMAL, "datacontenttype": "text/plain"}, b"", "application/json")
    assert read({**MINIMAL, "datacontenttype": "text/plain"}).content_type == "text/plain"


@pytest.mark.parametrize(
    ("extra", "address"),
    [
        ({}, "events/com.example.reading"),
        ({"type": "a/b+c"}, "events/a%2Fb%2Bc"),
        ({"subject": "plain"}, "plain"),
        ({"subject": "a/b/c"}, "a/b/c"),
        ({"subject": "a/+/#"}, "a/%2B/%23"),
        ({"subject": "a/%2B"}, "a/%252B"),
        ({"subject": "100%"}, "100%"),
    ],
)
def test_the_address_is_the_subject_or_the_type(extra: dict[str, str], address: str) -> None:
    message = read({**MINIMAL, **extra})
    assert message.address == address
    assert attributes_of(message) == {**MINIMAL, **extra}


def test_a_route_rule_comes_first() -> None:
    message = read({**MINIMAL, "subject": "s"}, route=lambda attributes: f"by/{attributes['type']}")
    assert message.address == "by/com.example.reading"
    assert read({**MINIMAL, "subject": "s"}, route=lambda attributes: None).address == "s"
    assert read({**MINIMAL, "subject": "s"}, route=lambda attributes: "r", address="t").address == "t"


def test_an_address_too_long_is_refused() -> None:
    with pytest.raises(Refusal, match="longer"):
        read({**MINIMAL, "subject": "a" * 65_536})


def test_what_the_protocol_says_wins_and_the_event_leaves_unchanged() -> None:
    attributes = {**MINIMAL, "correlationid": "c", "extension": "e"}
    message = read(
        attributes,
        qos=2,
        correlation=b"\xff",
        expires_at_ms=5,
        properties=(("X-Other", "o"),),
        native={"mqtt": {"a": 1}},
    )
    assert (message.qos, message.correlation, message.expires_at_ms) == (2, b"\xff", 5)
    assert message.properties == (("extension", "e"), ("X-Other", "o"))
    assert message.native is not None
    assert message.native["mqtt"] == {"a": 1}
    assert attributes_of(message) == attributes


def test_only_a_trusted_gateway_names_the_device() -> None:
    attributes = {**MINIMAL, "deviceid": "other"}
    untrusted, trusted = read(attributes), read(attributes, trusted_gateway=True)
    assert (untrusted.device, untrusted.principal) == ("dev", None)
    assert (trusted.device, trusted.principal) == ("other", "dev")
    assert attributes_of(trusted) == attributes


def test_split_leaves_what_is_no_attribute() -> None:
    attributes, others = split([("id", "1"), ("Not-One", "x"), ("id", "2"), ("ext", "e")])
    assert attributes == {"id": "1", "ext": "e"}
    assert others == (("Not-One", "x"), ("id", "2"))


def test_a_message_that_never_was_an_event_is_wrapped() -> None:
    message = Message(
        address="telemetry/dev 1/temp",
        body=b"1",
        time_ms=1_522_949_460_000,
        protocol="mqtt",
        id="1f.2",
        key="k",
        correlation=b"\xff",
        expires_at_ms=1_522_949_461_500,
        properties=(("unit", "C\n"), ("Not-One", "x"), ("unit", "again"), ("subject", "x")),
    )
    assert attributes_of(message) is None
    assert wrap(message) == {
        "specversion": "1.0",
        "id": "1f.2",
        "source": "//headgate/telemetry",
        "type": "headgate.message.v1",
        "time": "2018-04-05T17:31:00Z",
        "subject": "telemetry/dev 1/temp",
        "partitionkey": "k",
        "expirytime": "2018-04-05T17:31:01.500Z",
        "unit": "C%0A",
        "headgateproperties": '[["Not-One","x"],["unit","again"],["subject","x"]]',
    }
    assert wrap(message, topic="a b")["source"] == "//headgate/a%20b"
    assert wrap(msgspec.structs.replace(message, type="reading"))["type"] == "reading"


@pytest.mark.parametrize("came_as_event", [True, False])
def test_properties_beyond_what_a_header_may_hold_are_counted_and_left_out(came_as_event: bool) -> None:
    properties = [("Not-One", str(n) + "\x7f" * 10) for n in range(200)]
    properties[3] = ("Too-Long", "x" * 65_000)
    message = Message(address="a/b", id="1", properties=tuple(properties))
    attributes = wrap(message)
    if came_as_event:
        native = {NATIVE: {"source": "/s", "subject": "a/b"}}
        attributes = placed(msgspec.structs.replace(message, native=native)) or {}
    said = attributes["headgateproperties"]
    kept = [tuple(pair) for pair in json.loads(said)]
    assert 4_000 < len(said) <= 4_096
    assert said.isprintable()
    short = [pair for pair in properties if pair[0] == "Not-One"]
    assert kept == short[: len(kept)]  # in their order
    assert attributes["headgateomitted"] == str(200 - len(kept))


def test_no_publisher_says_how_many_properties_were_left_out() -> None:
    message = Message(address="a/b", id="1", properties=(("headgateomitted", "7"),))
    assert "headgateomitted" not in wrap(message)


def test_a_wrapped_message_is_an_event() -> None:
    message = Message(
        address="a\x01/#b", id="i\x00d", type="\x7f", device="d", correlation=b"c", properties=(("e", "\x80"),)
    )
    attributes = wrap(message)
    assert attributes_of(read(attributes)) == attributes


def test_what_no_attribute_may_say_is_a_property() -> None:
    properties = (("sequence", ""), ("dataref", "no uri"), ("dataref", "/a"), ("sequence", "1"), ("e", "\t"))
    attributes = wrap(Message(address="a/b", id="1", content_type="json", properties=properties))
    assert (attributes["dataref"], attributes["sequence"], attributes["e"]) == ("/a", "1", "%09")
    said = json.loads(attributes["headgateproperties"])
    assert said == [["datacontenttype", "json"], ["sequence", ""], ["dataref", "no uri"]]
    assert attributes_of(read({n: text for n, text in attributes.items() if n != "headgateproperties"})) is not None


def test_a_property_beside_an_event_is_no_attribute_that_readers_refuse() -> None:
    message = read(MINIMAL, properties=(("dataref", "no uri"), ("e", "\t")))
    attributes = placed(message) or {}
    assert (attributes.get("dataref"), attributes["e"]) == (None, "%09")
    assert attributes["headgateproperties"] == '[["dataref","no uri"]]'
    assert read(attributes).properties == (("e", "%09"),)


def test_so_many_properties_are_attributes_as_readers_take() -> None:
    properties = tuple((f"n{number}", "v") for number in range(1_100))
    for message in (Message(address="a", id="1", properties=properties), read(MINIMAL, properties=properties)):
        attributes = placed(message) or wrap(message)
        assert len(read(attributes).properties) > 900


def test_our_names_are_fields_of_a_plain_message_alone() -> None:
    ours = (("replyto", "x"), ("contentencoding", "y"), ("correlationdata", "z"))
    message = Message(address="a", id="1", properties=ours)
    assert wrap(message)["headgateproperties"] == json.dumps([list(pair) for pair in ours], separators=(",", ":"))
    assert not wrap(message).keys() & dict(ours).keys()
    assert attributes_of(read(MINIMAL | dict(ours))) == MINIMAL | dict(ours)


def test_a_key_and_a_time_to_live_beside_an_event_are_seen() -> None:
    beside = {"partitionkey": "k", "expirytime": "2018-04-05T18:31:00Z"}
    message = decode(encode(read(MINIMAL, key="k", expires_at_ms=1_522_953_060_000)))
    assert placed(message) == {**MINIMAL, **beside}
    own = {**MINIMAL, "partitionkey": "own", "expirytime": "2018-04-05T18:00:00Z"}
    assert placed(read(own, key="k", expires_at_ms=5)) == own


def test_a_key_of_an_event_of_older_records_is_seen() -> None:
    native = {NATIVE: {"source": "/s", "time": None, "partitionkey": None, "expirytime": None}}
    message = Message(address="events/t", id="1", type="t", key="k", expires_at_ms=0, native=native)
    attributes = placed(message) or {}
    assert (attributes["partitionkey"], attributes["expirytime"]) == ("k", "1970-01-01T00:00:00Z")
