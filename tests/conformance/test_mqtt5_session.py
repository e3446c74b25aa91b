"""MQTT 5.0, 3.12 to 3.15, 4.1, 4.2, 4.12, 4.13 and 6: the life of a connection and of its session."""

import pytest

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Cause, Refusal
from gateway.port import adapter as port
from gateway.port.adapter import Outcome
from gateway.port.sessions import DropWill, EndSession, SaveSession
from gateway.security.scram import MECHANISM
from tests.conformance.mqtt5_kit import (
    CONNACK,
    DISCONNECT,
    again,
    code_of_the_end,
    connected,
    delivered,
    durable,
    framed,
    message,
    not_let_in,
    refused,
    request,
    subscribed,
)
from tests.support.mqtt.mqtt_driver import Driver, batch_of
from tests.support.mqtt.mqtt_scram import ScramDriver, auth
from tests.support.mqtt.mqtt_websocket import WebDriver
from tests.support.mqtt.mqtt_websocket import request as web_request

# ---- PINGREQ


def test_a_ping_is_answered():
    """MQTT-3.12.4-1."""
    driver = connected(5)
    assert driver.send(Pingreq()) == [Pingresp()]
    assert driver.send(Pingreq(), Pingreq()) == [Pingresp(), Pingresp()]


# ---- DISCONNECT


def test_no_disconnect_ahead_of_a_connack_that_lets_in():
    """MQTT-3.14.0-1."""
    ends = (
        framed(0x10, b"\0\4MQTT\5\3\0\0\0\0\1c"),
        framed(0x10, b"\0\4MQTT\6\2\0\0\0\0\1c"),
        encode(Connect(version=5, client_id="x" * 2_000), 5),
        encode(Connect(version=5, client_id="c", properties=Properties(authentication_method="none")), 5),
    )
    for data in ends:
        not_let_in(data)  # which hears a CONNACK or nothing
    for how in ("superseded", "shutdown"):
        driver = Driver(5)
        driver.answer_effect = lambda effect: None  # type: ignore[method-assign]
        driver.send(Connect(version=5, client_id="c"))
        driver.act(getattr(driver.adapter, how)(now_ms=driver.now_ms))
        assert {type(one) for one in driver.out()} <= {Connack}
        assert driver.closed is not None


def ends() -> dict[str, int]:
    """Returns every way in which the server ends a connection, and its code."""
    options = Options(max_packet_bytes=200, topic_alias_maximum=1, receive_maximum=1)
    said = {
        name: refused(data, options=options)
        for name, data in {
            "malformed": b"\x00\x00",
            "protocol error": encode(Connack(), 5),
            "topic name": encode(Publish(topic="+"), 5),
            "alias": encode(Publish(topic="t", properties=Properties(topic_alias=2)), 5),
            "too large": encode(Publish(topic="t", payload=bytes(300)), 5),
            "too many": b"".join(encode(Publish(topic="t", qos=1, packet_id=n), 5) for n in (1, 2)),
        }.items()
    }
    for how in ("superseded", "shutdown"):
        driver = connected(5)
        driver.act(getattr(driver.adapter, how)(now_ms=driver.now_ms))
        said[how] = driver.out()[-1].code
    driver = connected(5, keep_alive_s=1)
    said["silent"] = driver.tick(1_500)[-1].code
    for cause in Cause:
        driver = durable(5)
        driver.saves = False
        driver.send(Subscribe(packet_id=1, requests=(request("u"),)))
        (save,) = driver.calls(SaveSession)
        said[f"not saved: {cause}"] = driver.complete(save, Outcome(error=Refusal(cause)))[-1].code
    return said


def test_codes_of_a_disconnect():
    """MQTT-3.14.2-1. MQTT-4.13.2-1."""
    said = ends()
    assert set(said.values()) <= DISCONNECT - {0}
    assert (said["malformed"], said["protocol error"], said["superseded"], said["silent"]) == (0x81, 0x82, 0x8E, 0x8D)


def test_a_disconnect_of_ours_says_nothing_of_the_session():
    """MQTT-3.14.2-2."""
    driver = durable(5)
    driver.act(driver.adapter.shutdown(now_ms=driver.now_ms))
    (bye,) = driver.out()
    assert bye.properties.session_expiry_s is None
    assert bye.properties.reason


@pytest.mark.parametrize("size", [4, 30])
def test_no_reason_makes_a_disconnect_too_large(size):
    """MQTT-3.14.2-3. MQTT-3.14.2-4. MQTT-3.1.2-24."""
    driver = connected(5)
    driver.adapter.context.packet_bytes_max = size  # as CONNECT would have it, were its CONNACK not larger
    driver.feed(encode(Publish(topic="+"), 5))
    raw = driver.adapter.take_output()
    assert len(raw) <= size
    assert raw == b"\xe0\x01\x90"


def test_nothing_follows_a_disconnect():
    """MQTT-3.14.4-1. MQTT-3.14.4-2."""
    driver = subscribed(5)
    driver.send(Publish(topic="t", qos=1, packet_id=1))
    waiting = driver.take(port.Publish)
    bye = driver.send(Connack(), Pingreq())[-1]
    assert isinstance(bye, Disconnect)
    assert driver.closed is not None
    assert driver.deliver(batch_of(message())) == 0
    assert driver.complete(waiting[0]) == []
    assert driver.send(Pingreq()) == []
    assert driver.tick(10**7) == []
    driver.lose()
    assert driver.out() == []


def test_behind_a_clients_disconnect_nothing_is_heard():
    """MQTT-3.14.4-1. MQTT-3.14.4-2."""
    driver = connected(5)
    assert driver.send(Disconnect(), Publish(topic="t", qos=1, packet_id=1), Pingreq()) == []
    assert driver.closed == ""
    assert driver.published() == []


def test_a_will_is_dropped_by_a_normal_disconnect_alone():
    """MQTT-3.14.4-3. MQTT-3.1.2-8. MQTT-3.1.2-10."""
    for code in (0x00, 0x04, 0x80, 0x81, 0x93):
        driver = connected(5, will=Will(topic="w", payload=b""))
        driver.send(Disconnect(code=code))
        driver.lose()
        assert len(driver.calls(DropWill)) == (code == 0)
    driver = connected(5, will=Will(topic="w", payload=b""))
    driver.lose()
    assert driver.calls(DropWill) == []


# ---- the session


def test_a_session_is_kept_while_it_is_connected():
    """MQTT-4.1.0-1."""
    driver = durable(5)
    sent = delivered(driver, message(b"1", 2), message(b"2", 1))
    driver.tick(10**9)  # far longer than the session may outlive the connection
    assert driver.closed is None
    assert driver.calls(EndSession) == []
    assert [one.packet_id for one in delivered(driver, message(b"3", 1), frame=8_192)] == [3]
    driver.lose()
    other, _ = again(driver)
    out = delivered(other, message(b"1", 2), message(b"2", 1))
    assert {one.payload: one.packet_id for one in out} == {one.payload: one.packet_id for one in sent}


def test_a_session_without_expiry_is_ended():
    """MQTT-4.1.0-2."""
    driver = durable(5)
    driver.send(Disconnect(properties=Properties(session_expiry_s=0)))
    assert len(driver.calls(EndSession)) == 1
    driver = connected(5)
    assert driver.asked is not None
    assert driver.asked.expiry_s == 0


# ---- authentication


@pytest.mark.parametrize("method", ["", "PLAIN", "SCRAM-SHA-1", MECHANISM.lower()])
def test_a_method_that_is_not_offered(method):
    """MQTT-4.12.0-1."""
    connect = Connect(version=5, client_id="c", properties=Properties(authentication_method=method))
    assert not_let_in(encode(connect, 5)) == 0x8C


def test_the_servers_words_are_to_be_continued():
    """MQTT-4.12.0-2. MQTT-3.15.2-1. MQTT-4.12.0-5."""
    driver = ScramDriver()
    client = driver.client()
    (challenge,) = driver.begin(client)
    assert isinstance(challenge, Auth)
    assert (challenge.code, challenge.properties.authentication_method) == (0x18, MECHANISM)
    (connack,) = driver.prove(client, challenge)
    assert (connack.code, connack.properties.authentication_method) == (0, MECHANISM)
    (challenge,) = driver.send(auth(driver.client().get_client_first().encode(), 0x19))
    assert (challenge.code, challenge.properties.authentication_method) == (0x18, MECHANISM)


@pytest.mark.parametrize("code", [0x00, 0x19, 0x80])
def test_the_clients_words_are_to_be_continued(code):
    """MQTT-4.12.0-3. MQTT-3.15.2-1."""
    driver = ScramDriver()
    driver.begin(driver.client())
    (connack,) = driver.send(auth(b"c=biws,r=x,p=x", code))
    assert (type(connack), connack.code) == (Connack, 0x82)
    assert driver.closed is not None


@pytest.mark.parametrize("data", [b"", b"x", b"c=biws,r=x,p=x"])
def test_an_authentication_may_be_refused_at_any_point(data):
    """MQTT-4.12.0-4. MQTT-3.2.2-7."""
    driver = ScramDriver()
    driver.begin(driver.client())
    (connack,) = driver.send(auth(data))
    assert connack.code in CONNACK - {0}
    assert driver.closed is not None
    assert driver.send(auth(data)) == []


@pytest.mark.parametrize("method", [None, "PLAIN"])
def test_every_auth_names_the_method(method):
    """MQTT-4.12.0-5. MQTT-4.12.1-1."""
    driver = ScramDriver()
    driver.begin(driver.client())
    (connack,) = driver.send(auth(b"x", method=method))
    assert connack.code == 0x82
    driver = ScramDriver()
    driver.join()
    assert code_of_the_end(driver, encode(auth(b"n,,n=user,r=x", 0x19, method), 5)) == 0x82


def test_without_a_method_there_is_no_auth():
    """MQTT-4.12.0-6. MQTT-4.12.0-7."""
    driver = Driver(5)
    assert driver.connect(username="u", password=b"p").properties.authentication_method is None
    assert code_of_the_end(driver, encode(auth(b"n,,n=user,r=x", 0x19), 5)) == 0x82


@pytest.mark.parametrize(
    "packet",
    [Pingreq(), Publish(topic="t"), Subscribe(packet_id=1, requests=(request(),)), Connect(version=5, client_id="c")],
)
def test_with_a_method_only_auth_and_disconnect_come_before_the_connack(packet):
    """MQTT-3.1.2-30."""
    driver = ScramDriver()
    driver.begin(driver.client())
    (connack,) = driver.send(packet)
    assert (type(connack), connack.code) == (Connack, 0x82)
    assert driver.closed is not None


def test_who_cannot_prove_it_again_is_disconnected():
    """MQTT-4.12.1-2."""
    driver = ScramDriver()
    driver.join()
    client = driver.client(password="wrong")
    (challenge,) = driver.send(auth(client.get_client_first().encode(), 0x19))
    (bye,) = driver.prove(client, challenge)
    assert (type(bye), bye.code) == (Disconnect, 0x87)
    assert driver.closed is not None


def test_nothing_makes_an_auth_larger_than_the_client_takes():
    """MQTT-3.15.2-2. MQTT-3.15.2-3."""
    driver = ScramDriver()
    client = driver.client()
    data = client.get_client_first().encode()
    said = Properties(authentication_method=MECHANISM, authentication_data=data, maximum_packet_bytes=40)
    driver.feed(encode(Connect(version=5, client_id="c1", properties=said), 5))
    raw = driver.adapter.take_output()
    assert len(raw) <= 40
    assert driver.closed is not None
    driver = ScramDriver()
    (challenge,) = driver.begin(driver.client())
    assert (challenge.properties.reason, challenge.properties.user) == (None, ())


# ---- errors


MALFORMED = [
    b"\x30\x00",
    b"\x30\x02\0\5",
    b"\x32\x05\0\1t\0\1",
    b"\x40\x01\0",
    b"\x62\x00",
    b"\x82\x02\0\1",
    b"\xc0\x01\0",
    b"\xe0\x02\0\5",
    b"\x30\x05\0\1t\1\x77",
    b"\x30\xff\xff\xff\xff\x7f",
    b"\xf0\x01\x18",
]


@pytest.mark.parametrize("data", MALFORMED)
def test_what_cannot_be_read_ends_the_connection(data):
    """MQTT-4.13.1-1. MQTT-4.13.2-1."""
    driver = connected(5, will=Will(topic="w", payload=b""))
    assert code_of_the_end(driver, data) in {0x81, 0x82}
    assert driver.calls(DropWill) == []


def test_an_error_hurts_nobody_else():
    """MQTT-4.13.1-1."""
    bad, good = connected(5, client_id="bad"), connected(5, client_id="good")
    code_of_the_end(bad, b"\x00\x00")
    assert good.send(Pingreq()) == [Pingresp()]


# ---- WebSocket


def web_frame(opcode: int, data: bytes, *, last: bool = True) -> bytes:
    return bytes((opcode | last << 7, 0x80 | len(data))) + bytes(4) + data


@pytest.mark.parametrize("opcode", [1, 3, 7])
def test_packets_are_in_binary_frames(opcode):
    """MQTT-6.0.0-1."""
    driver = WebDriver().open()
    driver.connect()
    driver.raw(web_frame(opcode, b"\xc0\x00"))
    assert driver.out() == []
    assert driver.closed
    assert bytes(driver.heard[-1].data[:2]) in {b"\x03\xeb", b"\x03\xea"}  # 1003 for text, 1002 for what there is not


def test_frames_and_packets_have_borders_of_their_own():
    """MQTT-6.0.0-2."""
    driver = WebDriver().open()
    data = encode(Connect(version=5, client_id="c1"), 5)
    for byte in data:
        driver.raw(web_frame(2, bytes((byte,))))
    assert [type(one) for one in driver.out()] == [Connack]
    two = encode(Pingreq(), 5) * 2 + encode(Subscribe(packet_id=1, requests=(request(),)), 5)
    driver.raw(web_frame(2, two[:5], last=False) + web_frame(0, two[5:]))
    assert [type(one) for one in driver.out()] == [Pingresp, Pingresp, Suback]


@pytest.mark.parametrize(("offered", "status"), [("mqtt", 101), ("a, mqtt", 101), ("wamp", 400), (None, 400)])
def test_the_subprotocol_is_mqtt(offered, status):
    """MQTT-6.0.0-3. MQTT-6.0.0-4."""
    driver = WebDriver()
    driver.raw(web_request(sec_websocket_protocol=offered))
    head = driver.adapter.take_output().split(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 %d" % status)
    chosen = [line.partition(b": ")[2] for line in head.split(b"\r\n") if line.startswith(b"sec-websocket-protocol")]
    assert chosen == ([b"mqtt"] if status == 101 else [])


def test_transports():
    """MQTT-4.2.0-1."""
    for driver in (Driver(5), WebDriver(5).open()):
        assert driver.connect().code == 0
        driver.send(*(Publish(topic="t", payload=b"%d" % n, qos=1, packet_id=n) for n in range(1, 50)))
        assert [one.body for one in driver.published()] == [b"%d" % n for n in range(1, 50)]
