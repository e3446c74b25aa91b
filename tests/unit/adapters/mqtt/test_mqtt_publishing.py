"""Publishing events to a broker of somebody else's: what it is sent, and when it has taken an event."""

from typing import Any

import msgspec
import pytest

from adapters.cloudevents import to_structured
from adapters.mqtt import FACTORY
from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
)
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.messages.messages import Template
from gateway.domain.bridge_path import PATH, introduction
from gateway.domain.errors import ProtocolError, Refusal
from gateway.port.bridge import BrokerAnswer, PublisherTerms
from store.api.message import Message

NOW_MS = 1_700_000_000_000
HERE, THERE = "aa01", "bb02"
EVENT = Properties(
    content_type="application/json",
    user=(
        ("specversion", "1.0"),
        ("id", "e1"),
        ("source", "/plant/7"),
        ("type", "reading"),
        ("subject", "plant/a"),
        ("colour", "rote Grütze"),
        ("Site Name", "north"),
    ),
)


class Broker:
    """A broker of either version, packet by packet."""

    def __init__(self, *, say: Connack | None = None, **terms: Any) -> None:
        settings = {"version": "5.0", "username": None, "password": None, "qos": 1, "retain": False, **terms}
        more = {"structured": False, "expiry_s": None, "properties": (), "gateway": HERE}
        self.publisher = FACTORY.publisher(
            PublisherTerms(
                client_id="headgate-1",
                clean=True,
                session_expiry_s=0,
                keep_alive_s=30,
                answer_timeout_ms=5_000,
                receive_maximum=1,
                **{**more, **settings},
            )
        )
        self.version = 5 if settings["version"] == "5.0" else 4
        self.now_ms = NOW_MS
        self.publisher.connected(NOW_MS)
        (self.connect,) = self.heard()
        if say is not None:
            self.say(say)

    def say(self, *packets: Packet) -> None:
        self.publisher.receive(b"".join(encode(one, self.version) for one in packets), self.now_ms)

    def heard(self) -> list[Packet]:
        data, at, found = self.publisher.take_output(), 0, []
        while at < len(data):
            frame = read_fixed_header(data, at, minimal=True)
            found.append(decode(frame.first, data[frame.start : frame.end], self.version))
            at = frame.end
        return found

    def sent(self, message: Message, topic: str = "up/a") -> Publish:
        assert self.publisher.publish(topic, message, self.now_ms) is not None
        (packet,) = self.heard()
        assert isinstance(packet, Publish)
        return packet


def message_of(properties: Properties, body: bytes) -> Message:
    said = {"qos": 1, "retain": False, "device": "d", "principal": None}
    return Template.of(properties).message("plant/a", body, **said, now_ms=NOW_MS)


def event(properties: Properties = EVENT, **changes: Any) -> Message:
    made = message_of(properties, b'{"c": 1}')
    return msgspec.structs.replace(made, **changes)


def plain(**fields: Any) -> Message:
    return Message("plant/a", b"b", NOW_MS, "http", "dev42", id="m1", **fields)


@pytest.fixture(params=["5.0", "3.1.1"])
def broker(request: Any) -> Broker:
    return Broker(version=request.param, say=Connack())


def test_it_connects_with_a_clean_session_and_says_which_gateway_it_is() -> None:
    connect = Broker(username="u", password="p").connect
    assert isinstance(connect, Connect)
    assert (connect.client_id, connect.clean, connect.username, connect.password) == ("headgate-1", True, "u", b"p")
    assert (connect.properties.session_expiry_s, connect.properties.user) == (0, introduction(HERE))


def test_an_event_is_taken_when_its_puback_has_come_in_any_order(broker: Broker) -> None:
    numbers = [broker.publisher.publish("up/a", event(), NOW_MS) for _ in range(3)]
    assert [packet.packet_id for packet in broker.heard()] == numbers
    assert list(broker.publisher.answers()) == []
    broker.say(Puback(packet_id=numbers[2]), Puback(packet_id=numbers[0]))
    assert broker.publisher.answers() == [BrokerAnswer(numbers[2]), BrokerAnswer(numbers[0])]
    assert broker.publisher.publish("up/a", event(), NOW_MS) not in {None, 0, numbers[1]}


def test_over_qos_2_it_is_taken_at_the_end_of_the_exchange() -> None:
    broker = Broker(qos=2, say=Connack())
    number = broker.sent(event()).packet_id
    broker.say(Pubrec(packet_id=number))
    assert broker.heard() == [Pubrel(packet_id=number)]
    assert not broker.publisher.answers()
    broker.say(Pubcomp(packet_id=number))
    assert broker.publisher.answers() == [BrokerAnswer(number)]


def test_over_qos_0_nothing_answers() -> None:
    broker = Broker(qos=0, retain=True, say=Connack())
    assert broker.publisher.publish("up/a", event(), NOW_MS) == 0
    (packet,) = broker.heard()
    assert (packet.qos, packet.retain, packet.packet_id) == (0, True, None)


@pytest.mark.parametrize(
    ("code", "of_message"),
    [
        (ReasonCode.PAYLOAD_FORMAT_INVALID, True),
        (ReasonCode.TOPIC_NAME_INVALID, True),
        (ReasonCode.PACKET_TOO_LARGE, True),
        (ReasonCode.QUOTA_EXCEEDED, False),
        (ReasonCode.NOT_AUTHORIZED, False),
    ],
)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_broker_that_refuses_says_whose_fault_it_is(qos: int, code: ReasonCode, of_message: bool) -> None:
    broker = Broker(qos=qos, say=Connack())
    number = broker.sent(event()).packet_id
    broker.say((Puback if qos == 1 else Pubrec)(packet_id=number, code=code, properties=Properties(reason="so")))
    (answer,) = broker.publisher.answers()
    assert (answer.number, answer.of_message) == (number, of_message)
    assert "'so'" in answer.error


def test_nobody_has_subscribed_is_no_refusal() -> None:
    broker = Broker(say=Connack())
    number = broker.sent(event()).packet_id
    broker.say(Puback(packet_id=number, code=ReasonCode.NO_MATCHING_SUBSCRIBERS))
    assert broker.publisher.answers() == [BrokerAnswer(number)]


@pytest.mark.parametrize(
    "answer", [Puback(packet_id=7), Pubrec(packet_id=1), Pubcomp(packet_id=1), Publish(topic="a"), Connack()]
)
def test_what_answers_nothing_ends_the_connection(broker: Broker, answer: Packet) -> None:
    broker.sent(event())
    with pytest.raises(ProtocolError, match=r"answers nothing|unexpected"):
        broker.say(answer)


def test_a_connection_that_one_event_alone_may_have_ended_names_it() -> None:
    for count, code, named in ((1, 0x95, True), (2, 0x95, False), (1, 0x8E, False), (1, 0x81, True)):
        broker = Broker(say=Connack())
        numbers = [broker.sent(event()).packet_id for _ in range(count)]
        with pytest.raises(ProtocolError) as raised:
            broker.say(Disconnect(code=code))
        assert broker.publisher.message_at_fault(raised.value) == (numbers[0] if named else None)
    broker = Broker(say=Connack())
    broker.sent(event())
    with pytest.raises(ProtocolError) as raised:
        broker.say(Puback(packet_id=9))  # its own mistake
    assert broker.publisher.message_at_fault(raised.value) is None


def test_an_event_in_binary_mode_is_the_event_that_it_was() -> None:
    packet = Broker(properties=(("tenant", "a"),), say=Connack()).sent(event())
    assert (packet.topic, packet.payload, packet.qos) == ("up/a", b'{"c": 1}', 1)
    assert packet.properties.content_type == "application/json"
    assert set(packet.properties.user) == {*EVENT.user, ("tenant", "a")}
    user = tuple(pair for pair in packet.properties.user if pair[0] != "tenant")
    properties = Properties(content_type=packet.properties.content_type, user=user)
    again = message_of(properties, packet.payload)
    assert to_structured(again) == to_structured(event())


def test_a_message_that_never_was_an_event_becomes_one() -> None:
    message = plain(key="k", reply_to="r/1", correlation=b"\0", properties=(("zone", "1"), ("zone", "2"), ("A b", "3")))
    user = Broker(say=Connack()).sent(message).properties
    assert (user.response_topic, user.correlation) == ("r/1", b"\0")
    said = dict(user.user)
    assert (said["specversion"], said["id"], said["type"]) == ("1.0", "m1", "headgate.message.v1")
    assert (said["source"], said["subject"], said["partitionkey"]) == ("//headgate/plant", "plant/a", "k")
    assert (said["zone"], said["A b"]) == ("1", "3")
    assert said["headgateproperties"] == '[["zone","2"],["A b","3"]]'  # a repeat would be taken for the attribute
    assert [name for name, _ in user.user].count("zone") == 1


def test_structured_mode_and_3_1_1_have_the_event_as_json() -> None:
    five = Broker(structured=True, properties=(("tenant", "a"),), say=Connack()).sent(event())
    old = Broker(version="3.1.1", structured=True, say=Connack()).sent(event())
    assert five.properties.content_type == "application/cloudevents+json"
    assert five.properties.user == (("tenant", "a"),)
    assert (
        msgspec.json.decode(five.payload)
        == msgspec.json.decode(old.payload)
        == {
            **dict(EVENT.user[:6]),
            "datacontenttype": "application/json",
            "data": {"c": 1},
            "headgateproperties": '[["Site Name","north"]]',
        }
    )


NAMES = ("expirytime", "correlationid", "data", "datacontenttype", "dataschema", "id", "headgateaddress")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("made", [plain, event])
def test_properties_are_no_attributes_of_the_event(name: str, made: Any) -> None:
    """With `expirytime` its time would be over, with `data` no reader would take it for an event."""
    said = msgspec.structs.replace(made(), properties=((name, "2020-01-01T00:00:00Z"), ("A b", "1")))
    packet = Broker(say=Connack()).sent(said)
    again = message_of(packet.properties, packet.payload)
    assert (again.expires_at_ms, again.correlation, again.content_type) == (None, None, said.content_type)
    assert dict(again.properties)["A b"] == "1"
    attributes = dict(packet.properties.user)
    assert attributes["headgateproperties"] == f'[["{name}","2020-01-01T00:00:00Z"],["A b","1"]]'
    assert [other for other, _ in packet.properties.user].count(name) == (name == "id")


@pytest.mark.parametrize("made", [plain, event])
def test_repeats_with_the_same_text_are_kept(made: Any) -> None:
    message = msgspec.structs.replace(made(), properties=(("foo", "1"),) * 3)
    user = Broker(say=Connack()).sent(message).properties.user
    assert [pair for pair in user if pair[0] == "foo"] == [("foo", "1")]
    assert dict(user)["headgateproperties"] == '[["foo","1"],["foo","1"]]'


def test_a_repeat_of_the_coding_comes_behind_it() -> None:
    message = plain(content_encoding="gzip", properties=(("content-encoding", "br"),))
    packet = Broker(say=Connack()).sent(message)
    assert [text for name, text in packet.properties.user if name == "content-encoding"] == ["gzip", "br"]
    assert message_of(packet.properties, packet.payload).content_encoding == "gzip"


def test_properties_that_are_user_properties_are_not_counted_as_left_out() -> None:
    user = dict(Broker(say=Connack()).sent(plain(properties=(("A b", "x" * 5_000),))).properties.user)
    assert user["A b"] == "x" * 5_000
    assert user.keys().isdisjoint({"headgateproperties", "headgateomitted"})


@pytest.mark.parametrize("kind", ["application/cloudevents+json", "application/cloudevents-batch+json"])
def test_a_body_that_is_an_event_itself_is_the_data_of_one(kind: str) -> None:
    packet = Broker(say=Connack()).sent(plain(content_type=kind))
    assert packet.properties.content_type == "application/cloudevents+json"
    document = msgspec.json.decode(packet.payload)
    assert (document["subject"], document["datacontenttype"], document["id"]) == ("plant/a", kind, "m1")


def test_the_time_to_live_is_the_shorter_of_the_events_and_the_settings() -> None:
    def left(expiry_s: int | None, expires_at_ms: int | None) -> int | None:
        return (
            Broker(expiry_s=expiry_s, say=Connack())
            .sent(plain(expires_at_ms=expires_at_ms))
            .properties.message_expiry_s
        )

    assert left(None, None) is None
    assert left(60, None) == 60
    assert left(60, NOW_MS + 9_500) == 10
    assert left(5, NOW_MS + 9_500) == 5


def test_an_event_that_the_broker_cannot_be_sent_is_refused() -> None:
    broker = Broker(say=Connack(properties=Properties(maximum_packet_bytes=300)))
    with pytest.raises(Refusal, match="at most 300 bytes"):
        broker.publisher.publish("up/a", event(body=b"x" * 300), NOW_MS)
    with pytest.raises(Refusal, match="structured"):
        broker.publisher.publish("up/a", plain(properties=(("a", "x" * 70_000),)), NOW_MS)
    assert broker.heard() == []
    assert broker.sent(plain()).packet_id


def test_limits_of_the_broker_count() -> None:
    assert Broker(say=Connack(properties=Properties(receive_maximum=3))).publisher.in_flight_max == 3
    with pytest.raises(ProtocolError, match="QoS 1 at most"):
        Broker(qos=2, say=Connack(properties=Properties(maximum_qos=1)))
    with pytest.raises(ProtocolError, match="retain: false"):
        Broker(retain=True, say=Connack(properties=Properties(retain_available=0)))
    with pytest.raises(ProtocolError, match="bad user name"):
        Broker(say=Connack(code=0x86))
    with pytest.raises(ProtocolError, match="does not speak MQTT"):
        Broker().publisher.receive(b"\x20\x02\x00\x01", NOW_MS)


def test_it_pings_and_gives_up_a_silent_broker(broker: Broker) -> None:
    broker.publisher.tick(NOW_MS + 30_000, reading=True)
    assert broker.heard() == [Pingreq()]
    broker.now_ms += 31_000
    broker.say(Pingresp())
    with pytest.raises(ProtocolError, match="keep alive"):
        broker.publisher.tick(NOW_MS + 31_000 + 45_000, reading=True)
    silent = Broker()
    with pytest.raises(ProtocolError, match="no answer"):
        silent.publisher.tick(silent.publisher.deadline_ms(), reading=True)


def test_between_gateways_the_path_keeps_events_from_going_round() -> None:
    gateway = Connack(properties=Properties(user=introduction(THERE)))
    assert PATH not in dict(Broker(say=Connack()).sent(plain()).properties.user)
    assert dict(Broker(say=gateway).sent(plain()).properties.user)[PATH] == HERE
    came = plain(properties=((PATH, "cc03"),))
    assert dict(Broker(say=Connack()).sent(came).properties.user)[PATH] == f"cc03 {HERE}"
    been = plain(properties=((PATH, f"{THERE} {HERE}"),))
    assert Broker(say=gateway).publisher.publish("up/a", been, NOW_MS) is None


def test_bytes_may_come_one_by_one(broker: Broker) -> None:
    number = broker.sent(event()).packet_id
    for byte in encode(Puback(packet_id=number), broker.version):
        assert not broker.publisher.answers()
        broker.publisher.receive(bytes((byte,)), NOW_MS)
    assert broker.publisher.answers() == [BrokerAnswer(number)]
    with pytest.raises(ProtocolError, match="bytes"):
        broker.publisher.receive(b"\x40\xff\xff\x7f", NOW_MS)
