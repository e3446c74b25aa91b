"""Content properties and the domain message, field by field as `conversions.md` has it."""

import datetime
import decimal
import struct

import msgspec
import pytest
from pamqp import commands, frame, header

from adapters import cloudevents
from adapters.amqp.codec.delivery import _routes, deliver_frames, deliver_prefix
from adapters.amqp.codec.properties import properties_of, read_properties
from adapters.amqp.codec.property_fields import edited
from adapters.amqp.codec.wire import read_table
from adapters.amqp.publishing import (
    TARGETS,
    TARGETS_COUNT_MAX,
    TEMPLATES,
    TEMPLATES_COUNT_MAX,
    target_of,
    template_of,
)
from adapters.mqtt.messages.messages import dialect_of, publish_pieces
from gateway.domain.errors import ProtocolError
from gateway.domain.named import denied_name
from gateway.port.queues import answers_at, routing_of
from store.api.message import Message
from tests.support.amqp.amqp_peer import NOW_MS, Peer, publish

_PROPERTIES = Message.__struct_fields__[5:].index("properties")


def taken(**properties):
    peer = Peer().open()
    peer.feed(publish(1, "amq.topic", "a.b", b"body", **properties))
    (message,) = peer.published()
    return message


def given(message):
    """Returns the properties that a client reads."""
    content = header.ContentHeader()
    content.unmarshal(struct.pack(">HHQ", 60, 0, 0) + properties_of(message, now_ms=NOW_MS))
    return content.properties


def test_every_property_has_its_place():
    message = taken(
        content_type="text/plain",
        content_encoding="gzip",
        delivery_mode=2,
        priority=3,
        correlation_id="corr",
        reply_to="a-queue",
        expiration="1500",
        message_id="m1",
        message_type="t",
        user_id="guest",
        app_id="app",
        headers={"x-retain": True, "ce-partitionkey": "k", "x-reply-to-topic": "re/ply", "traceparent": "00-1", "n": 5},
    )
    assert (message.address, message.body, message.time_ms) == ("a/b", b"body", NOW_MS)
    assert (message.protocol, message.device, message.qos, message.retain) == ("amqp", "guest", 1, True)
    assert (message.id, message.key, message.type) == ("m1", "k", "t")
    assert (message.content_type, message.content_encoding) == ("text/plain", "gzip")
    assert (message.expires_at_ms, message.correlation) == (NOW_MS + 1500, b"corr")
    assert (message.reply_to, message.traceparent) == ("re/ply", "00-1")
    assert message.properties == (("n", "5"),)


@pytest.mark.parametrize(("mode", "qos"), [(None, 0), (1, 0), (2, 1)])
def test_delivery_mode_is_qos(mode, qos):
    assert taken(delivery_mode=mode).qos == qos


def test_time_is_the_header_in_milliseconds_then_the_timestamp():
    from datetime import UTC, datetime

    stamp = datetime(2024, 1, 1, tzinfo=UTC)
    assert taken(timestamp=stamp).time_ms == 1_704_067_200_000
    assert taken(timestamp=stamp, headers={"timestamp_in_ms": 1_704_067_200_123}).time_ms == 1_704_067_200_123
    raw = b"\x00\x40" + (1_704_067_200_123).to_bytes(8, "big")
    assert read_properties(raw).time_ms == 1_704_067_200_123
    assert read_properties(b"\x00\x40" + b"\xff" * 8).time_ms is None


@pytest.mark.parametrize("mode", [0, 3, 255])
def test_a_delivery_mode_that_nobody_knows_is_not_persistent(mode):
    raw = b"\x10\x00" + bytes((mode,))
    message = read_properties(raw).message("a", b"", device="d", trusted_gateway=False, now_ms=NOW_MS)
    assert message.qos == 0
    assert properties_of(message, now_ms=NOW_MS) == raw


@pytest.mark.parametrize("said", ["2024-01-01", -5, 1 << 60, None, {"a": 1}, True])
def test_a_header_with_the_name_of_the_time_may_say_something_else(said):
    message = taken(headers={"timestamp_in_ms": said})
    assert message.time_ms == NOW_MS
    assert given(message).headers == {"timestamp_in_ms": said}


def test_the_time_may_be_a_fraction():
    table = b"\x0ftimestamp_in_msd" + struct.pack(">d", 1_704_067_200_123.75)
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert read_properties(raw).time_ms == 1_704_067_200_123


def test_expiration_zero_means_now_and_delay_is_from_the_arrival():
    assert taken(expiration="0").expires_at_ms == NOW_MS
    assert taken(headers={"x-delay": 500}).deliver_at_ms == NOW_MS + 500
    assert taken(headers={"x-delay": "500"}).deliver_at_ms == NOW_MS + 500


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        *(("+20", 20), ("20.9", 20), (decimal.Decimal("20.9"), 20), (20.9, 20), (1 << 33, 1 << 33)),
        *((value, None) for value in (0, -1, "0", "-500", -0.5, True, None, bytearray(b"5"), [5], {"ms": 5})),
    ],
)
def test_a_delay_is_what_the_plugin_of_rabbitmq_reads(value, delay_ms):
    message = taken(headers={"x-delay": value})
    assert message.deliver_at_ms == (None if delay_ms is None else NOW_MS + delay_ms)
    said = read_table(properties_of(message, now_ms=NOW_MS), 2)[0]["x-delay"]
    assert delay_ms is None or said == -delay_ms


def test_a_delay_is_over_when_its_message_is_delivered():
    late = taken(headers={"x-delay": 500, "a": "b"})
    raw = properties_of(late, now_ms=NOW_MS)
    assert read_table(raw, 2)[0] == {"x-delay": -500, "a": "b"}
    again = read_properties(raw).message("a", b"", device="d", trusted_gateway=False, now_ms=NOW_MS)
    assert again.deliver_at_ms is None
    assert properties_of(again, now_ms=NOW_MS) == raw


def test_a_priority_is_known_where_it_matters():
    assert taken(priority=7).native["amqp"]["priority"] == 7
    assert "priority" not in taken(priority=0).native["amqp"]


def test_the_id_is_the_message_id_then_the_header():
    assert taken(message_id="m", headers={"ce-id": "c"}).id == "m"
    assert taken(headers={"ce-id": "c"}).id == "c"
    assert taken().id == ""


def test_a_correlation_that_is_no_text_has_a_header():
    assert taken(headers={"x-correlation-data": bytearray(b"\xff\x00")}).correlation == b"\xff\x00"
    assert taken(headers={"x-correlation-data": "text"}).correlation == b"text"
    message = Message("a", correlation=b"\xff\x00")
    assert given(message).headers["x-correlation-data"] == b"\xff\x00"
    assert given(Message("a", correlation=b"text")).correlation_id == "text"


def test_headers_have_texts_where_there_are_any_and_stay_as_they_are():
    headers = {"s": "é", "i": -3, "t": True, "f": 1.5, "n": None, "l": [1, "a"], "d": {"x": 1}, "b": bytearray(b"\x01")}
    message = taken(headers=headers)
    assert sorted(message.properties) == [("f", "1.5"), ("i", "-3"), ("s", "é"), ("t", "true")]
    assert given(message).headers == headers


def test_what_came_by_amqp_leaves_as_the_same_bytes():
    raw = b"\xfc\xfc" + b"\x01a\x01b" + b"\x00\x00\x00\x04\x01zt\xff" + b"\x02\x09" + b"\x01c" * 2 + b"\x010\x01i"
    raw += (5).to_bytes(8, "big") + b"\x01t\x05guest\x01a\x01c"
    raw = raw.replace(b"\xfc\xfc", b"\xff\xfc", 1)
    template = read_properties(raw)
    message = template.message("a", b"", device="guest", trusted_gateway=False, now_ms=0)
    assert properties_of(message, now_ms=99) == raw


EVENT = {"ce-specversion": "1.0", "ce-id": "7", "ce-source": "/s", "ce-type": "t.x", "ce-subject": "sub", "ce-ext": "e"}


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents_", "cloudEvents:"])
def test_a_cloudevent_is_one_by_any_prefix(prefix):
    headers = {name.replace("ce-", prefix): value for name, value in EVENT.items()}
    message = taken(headers={**headers, "other": "o"}, content_type="text/plain", message_type="ignored")
    assert (message.id, message.type, message.content_type) == ("7", "t.x", "text/plain")
    assert message.address == "a/b"
    assert message.properties == (("ext", "e"), ("other", "o"))
    assert message.native["cloudevents"]["source"] == "/s"
    assert given(message).headers == {**headers, "other": "o"}


@pytest.mark.parametrize(
    "changes",
    [{"ce-specversion": "0.3"}, {"ce-id": ""}, {"ce-time": "soon"}, {"ce-source": None}, {"ce-expirytime": "x"}],
)
@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents:"])
def test_headers_of_no_event_are_those_of_a_message(prefix, changes):
    said = {name: value for name, value in {**EVENT, **changes}.items() if value is not None}
    headers = {name.replace("ce-", prefix): value for name, value in said.items()} | {"other": "o", "x-delay": 5}
    message = taken(headers=headers, content_type="text/plain", message_type="own", message_id="i", app_id="app")
    assert (message.id, message.type, message.content_type, message.body) == ("i", "own", "text/plain", b"body")
    assert message.deliver_at_ms == NOW_MS + 5
    assert "cloudevents" not in message.native
    assert given(message).headers == {**headers, "x-delay": -5}
    properties = dict(message.properties)
    assert (properties["other"], properties[f"{prefix}ext"], properties[f"{prefix}type"]) == ("o", "e", "t.x")
    assert ["appid", "app"] in message.native["amqp"]["shown"]


def test_headers_of_no_event_change_nothing_about_the_user():
    properties = commands.Basic.Properties(headers={**EVENT, "ce-specversion": "0.3"}, user_id="dev42")
    template = read_properties(properties.marshal())
    claimed = template.message("a", b"", device="gw", trusted_gateway=True, now_ms=1)
    assert (claimed.device, claimed.principal) == ("dev42", "gw")
    own = template.message("a", b"", device="id", user="dev42", trusted_gateway=False, now_ms=1)
    assert own.device == "id"
    with pytest.raises(ProtocolError):
        template.message("a", b"", device="other", trusted_gateway=False, now_ms=1)


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents_"])
@pytest.mark.parametrize("changes", [{}, {"ce-specversion": "0.3"}, {"ce-time": "soon"}, {"ce-dataschema": "relative"}])
def test_the_subject_is_one_that_the_publisher_may_publish_to_whether_it_is_an_event_or_none(prefix, changes):
    headers = {name.replace("ce-", prefix): value for name, value in {**EVENT, **changes}.items()}
    headers[f"{prefix}subject"] = "closed/a"
    message = taken(headers=headers)
    assert ("cloudevents" in message.native) == (not changes)
    assert denied_name(message, lambda _action, address: address != "closed/a") == ("publish", "closed/a")
    assert denied_name(message, lambda _action, _address: True) is None


def test_bytes_and_timestamps_are_attributes_in_the_forms_of_cloudevents():
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    headers = {**EVENT, "ce-sig": bytearray(b"\xff\xfe"), "ce-when": at, "ce-n": 7, "ce-subject": bytearray(b"x")}
    document = cloudevents.to_document(taken(headers=headers))
    assert (document["sig"], document["when"], document["n"]) == ("//4=", "2023-11-14T22:13:20Z", 7)
    assert "subject" not in document


def test_bytes_say_no_attribute_that_has_a_meaning_and_copies_are_no_headers_of_an_event():
    said = dict.fromkeys(("deviceid", "expirytime", "partitionkey", "traceparent"), bytearray(b"dev"))
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
    attributes = {f"ce-{name}": value for name, value in said.items()}
    headers = {**EVENT, **attributes, "ce-id": at, "ce-sequence": bytearray(), "CC": ["a"], "BCC": ["b"]}
    message = taken(headers=headers)
    document = cloudevents.to_document(message)
    assert not said.keys() & document.keys()
    assert (message.id, message.key, message.traceparent) == ("1700000000", None, None)


def test_an_event_of_another_protocol_has_ce_headers():
    native = {"cloudevents": {"source": "/s", "subject": "sub", "time": None}}
    message = Message(
        "a", b"", 5, "http", id="7", type="t", properties=(("ext", "e"), ("Not A Name", "x")), native=native
    )
    headers = given(message).headers
    assert headers["ce-specversion"] == "1.0"
    assert (headers["ce-id"], headers["ce-source"], headers["ce-ext"]) == ("7", "/s", "e")
    assert headers["Not A Name"] == "x"
    assert "ext" not in headers


def test_a_message_of_another_protocol_says_all_it_can():
    message = Message(
        "a/b",
        b"",
        1_500_000_001_234,
        "mqtt",
        "dev",
        2,
        retain=True,
        id="i",
        key="k",
        type="t",
        content_type="c",
        content_encoding="e",
        expires_at_ms=NOW_MS + 10,
        deliver_at_ms=NOW_MS + 20,
        reply_to="re/ply",
        correlation=b"corr",
        traceparent="tp",
        properties=(("p", "1"), ("q", "2"), ("p", "3")),
    )
    found = given(message)
    assert (found.content_type, found.content_encoding, found.delivery_mode) == ("c", "e", 2)
    assert (found.correlation_id, found.expiration, found.message_id) == ("corr", "10", "i")
    assert (found.message_type, found.user_id, found.timestamp.timestamp()) == ("t", "dev", 1_500_000_001)
    assert found.headers == {
        "timestamp_in_ms": 1_500_000_001_234,
        "ce-partitionkey": "k",
        "traceparent": "tp",
        "x-retain": True,
        "x-reply-to-topic": "re/ply",
        "x-delay": 20,
        "p": "1",
        "q": "2",
        "p.2": "3",
    }
    assert given(Message("a", expires_at_ms=1, qos=0)).expiration == "0"


@pytest.mark.parametrize(
    ("address", "reply_to", "queue"),
    [
        ("a", "$amqp//q", "q"),
        ("a", "$amqp//q/1/a%2Fb", "q.1.a/b"),
        ("a", "answers/q", None),
        ("a", "$amqp/x/q", None),
        ("a", "$amqp//amq/rabbitmq/reply-to", None),
        ("a", "$vhost/shop/amqp//q", None),
        ("$vhost/shop/amqp/x/k", "$vhost/shop/amqp//q", "q"),
        ("$vhost/shop/amqp/x/k", "$amqp//q", None),
    ],
)
def test_an_address_for_answers_that_is_a_queue_here_is_the_reply_to(address: str, reply_to: str, queue: str | None):
    found = given(Message(address, reply_to=reply_to))
    assert (found.reply_to, found.headers["x-reply-to-topic"]) == (queue, reply_to)


def test_what_is_too_long_for_a_field_is_a_header():
    message = Message("/".join(["level"] * 99), id="i" * 256, properties=(("n" * 300, "v"),))
    found = given(message)
    assert found.message_id is None
    assert found.headers["x-message-id"] == "i" * 256
    assert found.headers["x-routing-key"] == ".".join(["level"] * 99)
    assert found.headers["x-property"] == "n" * 300 + "=v"
    peer = Peer().open()
    assert peer.deliver(peer.consume(), [message]) == 1
    assert message.address.replace("/", ".").startswith(peer.methods()[0].routing_key)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b"\x80\x00",
        b"\x80\x00\x05abc",
        b"\x80\x00\x01\xff",
        b"\x00\x01\x00\x00",
        b"\x00\x02",
        b"\x00\x00junk",
        b"\x20\x00\x00\x00\x00\x05\x01a",
        b"\x20\x00\x00\x00\x00\x03\x01aq",
        b"\x20\x00\x00\x00\x00\x03\x01aS",
        b"\x20\x00" + b"\x00\x00\x10\x00\x01aF" * 40,
        b"\x20\x00\x00\x00\x00\x0a\x01aA\x00\x00\x00\x03b\x01t",
    ],
)
def test_malformed_properties_are_one_error(raw):
    with pytest.raises(ProtocolError) as info:
        read_properties(raw)
    assert info.value.code in (501, 502, 406)


def test_tables_nest_only_so_deep():
    def nested(depth):
        table = b""
        for _ in range(depth):
            table = b"\x01aF" + len(table).to_bytes(4, "big") + table
        return b"\x20\x00" + len(table).to_bytes(4, "big") + table

    assert read_properties(nested(30)).plain
    with pytest.raises(ProtocolError):
        read_properties(nested(10_000))


def test_what_publishers_repeat_is_remembered_within_bounds():
    TEMPLATES.clear()
    TARGETS.clear()
    assert template_of(b"\x00\x00") is template_of(b"\x00\x00")
    template_of(b"\x00\x80\x01i")
    assert list(TEMPLATES) == [b"\x00\x00"]
    payload = commands.Basic.Publish(exchange="x", routing_key="k")
    raw = struct.pack(">I", payload.index) + payload.marshal()
    assert target_of(raw) is target_of(raw)
    for n in range(TARGETS_COUNT_MAX + 10):
        template_of(b"\x80\x00\x04" + b"%04d" % n)
        target_of(raw[:6] + b"\x00\x04" + b"%04d" % n + b"\x00")
    assert len(TEMPLATES) <= TEMPLATES_COUNT_MAX
    assert len(TARGETS) <= TARGETS_COUNT_MAX


def test_what_is_long_is_not_remembered():
    TARGETS.clear()
    index = commands.Basic.Publish.index
    long = struct.pack(">I", index) + b"\0\0\xff" + b"x" * 255 + b"\xff" + b"k" * 255 + b"\0"
    assert target_of(long).address == f"$amqp/{'x' * 255}/{'k' * 255}"
    assert not TARGETS
    _routes.clear()
    for address in ("a" * 10_000, "a/b"):
        deliver_frames(1, deliver_prefix("c"), 1, [Message(address, b"")], [0], payload_max=4_088, now_ms=NOW_MS)
    assert list(_routes) == ["a/b"]


# ---- what a consumer's frames cannot hold


def delivered(*messages, payload_max=4_088):
    """Returns the content headers that a consumer gets, and checks that no frame is longer than agreed."""
    data = b"".join(
        deliver_frames(1, deliver_prefix("c"), 1, messages, [0] * len(messages), payload_max=payload_max, now_ms=NOW_MS)
    )
    found = []
    while data:
        used, _, value = frame.unmarshal(data)
        assert used <= payload_max + 8
        data = data[used:]
        if isinstance(value, header.ContentHeader):
            found.append(value.properties)
    assert len(found) == len(messages)
    return found


@pytest.mark.parametrize("length", [252, 253, 300, 100_000])
def test_an_event_with_an_attribute_of_any_length_is_delivered(length):
    name = "e" * length
    event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", name: "v"}
    message = cloudevents.from_attributes(
        event, b"{}", content_type=None, device="", now_ms=NOW_MS, protocol="http", address="a/b"
    )
    headers = delivered(message, payload_max=131_064)[0].headers
    assert headers["ce-source"] == "/s"
    assert "v" in headers.values() or headers["x-property"] == f"ce-{name}=v"


def test_headers_that_fit_no_frame_are_left_out_and_counted():
    properties = (("a", "1"), ("b", "x" * 60_000), ("c", "y" * 2_000), ("d", "z" * 60_000), ("e", "2"))
    (found,) = delivered(Message("a/b", b"x", properties=properties, content_type="text/plain", id="i"))
    assert (found.content_type, found.message_id) == ("text/plain", "i")
    assert found.headers["x-headers-left-out"] == 2
    assert [found.headers.get(name) for name in "abde"] == ["1", None, None, "2"]
    assert found.headers["c"] == "y" * 2_000


def test_headers_from_a_connection_with_larger_frames_keep_their_types():
    peer = Peer(frame_max=131_072).open(frame_max=131_072)
    peer.publish("amq.topic", "a.b", b"x", headers={"n": 5, "long": "x" * 9_000, "t": {"f": True}}, app_id="p" * 255)
    (found,) = delivered(*peer.published())
    assert found.app_id == "p" * 255
    assert found.headers == {"n": 5, "t": {"f": True}, "x-headers-left-out": 1}


def test_a_message_that_cannot_be_written_hurts_itself_alone(caplog):
    broken = Message("a/b", b"broken", properties=(("n", None),))
    first, second = delivered(broken, Message("a/b", b"whole", id="2"))
    assert first.headers == {"x-properties-left-out": True}
    assert second.message_id == "2"
    assert "a/b" in caplog.text


def test_times_and_delays_that_no_field_holds_are_delivered():
    far = (1 << 64) - 1
    first, second = delivered(Message("a", b"", -5_000, deliver_at_ms=far), Message("a", b"", far, expires_at_ms=far))
    assert first.headers == {"timestamp_in_ms": -5_000, "x-delay": (1 << 63) - 1}
    assert second.headers == {"timestamp_in_ms": (1 << 63) - 1}


def test_many_properties_of_one_name_are_written_in_linear_time():
    found = read_properties(properties_of(Message("a", b"", properties=(("n", "v"),) * 50_000), now_ms=NOW_MS))
    assert len(found.tail[_PROPERTIES]) == 50_000


def test_a_subscriber_of_mqtt_is_shown_what_has_no_field():
    peer = Peer().open()
    headers = {"plain": "x", "table": {"a": [1, "b"]}, "list": [True], "appid": "taken", "raw": bytearray(b"\xff")}
    headers["x-correlation-data"] = bytearray(b"\xfe")
    peer.publish("amq.topic", "a", b"x", message_id="m", reply_to="answers", app_id="app", headers=headers)
    (message,) = peer.published()
    _, tail = publish_pieces(message, dialect_of(5), qos=0, retain=False, now_ms=NOW_MS)
    shown = {"id": "m", "replyto": "answers", "table": '{"a":[1,"b"]}', "list": "[true]", "raw": "/w=="}
    for name, text in shown.items():
        pair = b"".join(len(one).to_bytes(2, "big") + one.encode() for one in (name, text))
        assert b"\x26" + pair in tail
    assert tail.count(b"appid") == 1
    assert b"x-correlation-data" not in tail
    assert b"taken" in tail


@pytest.mark.parametrize(
    ("at", "queue", "address"),
    [
        ("a/b", "answers.q", "$amqp//answers/q"),
        ("a/b", "a/b+c", "$amqp//a%2Fb%2Bc"),
        ("$vhost/shop/amqp/e/k", "q", "$vhost/shop/amqp//q"),
    ],
)
def test_other_protocols_are_told_the_queue_for_answers_as_an_address(at, queue, address):
    template = read_properties(edited(b"\0\0", fields={"reply_to": queue}))
    message = template.message(at, b"", device="d", trusted_gateway=False, now_ms=1)
    assert answers_at(message) == address
    assert routing_of(address)[1] == queue
    assert cloudevents.to_document(msgspec.structs.replace(message, id="1"))["replyto"] == address
    by_topic = msgspec.structs.replace(message, reply_to="re/ply")
    assert answers_at(by_topic) == "re/ply"
