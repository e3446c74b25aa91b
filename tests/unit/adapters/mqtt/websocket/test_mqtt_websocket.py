"""MQTT over WebSocket, against the client side of `websockets`, which nobody here wrote."""

import pytest
from msgspec.structs import replace
from websockets.frames import Frame, Opcode, apply_mask
from websockets.protocol import State

from adapters.mqtt.codec import ReasonCode, encode
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.messages.options import Options
from adapters.mqtt.websocket.frames import FRAME_BYTES_MAX
from adapters.mqtt.websocket.upgrade import HEAD_BYTES_MAX
from adapters.websocket.connection import CLOSING_MS
from gateway.port import adapter as port
from gateway.port.adapter import Call, Deliveries
from gateway.port.sessions import DropWill
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import batch_of
from tests.support.mqtt.mqtt_websocket import ACCEPT, KEY, WEB, WebDriver, request


def connected(version=5, options=None, **fields) -> WebDriver:
    driver = WebDriver(version, options).open()
    driver.connect(**fields)
    return driver


def frame(opcode, data=b"", *, fin=True, mask=True, rsv=0) -> bytes:
    """Returns a client's frame, which may break the rules."""
    length = bytes((len(data),)) if len(data) < 126 else b"\x7e" + len(data).to_bytes(2, "big")
    if mask:
        length = bytes((length[0] | 0x80,)) + length[1:] + b"mask"
        data = apply_mask(data, b"mask")
    return bytes((fin << 7 | rsv | opcode,)) + length + data


def publish(number: int) -> bytes:
    return encode(Publish(topic="t/a", payload=b"%d" % number, qos=1, packet_id=number), 5)


# ---- the handshake


def answered(data: bytes, info=WEB, **options) -> tuple[bytes, dict[bytes, bytes], bytes, WebDriver]:
    """Returns the status line, headers and body that a request gets."""
    driver = WebDriver(options=Options(**options), info=info)
    driver.raw(data)
    head, _, body = driver.adapter.take_output().partition(b"\r\n\r\n")
    status, *lines = head.split(b"\r\n")
    return status, {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines)}, body, driver


@pytest.mark.parametrize(
    ("offered", "chosen"), [("mqtt", b"mqtt"), ("mqttv3.1", b"mqttv3.1"), ("mqttv3.1, a, mqtt", b"mqtt")]
)
def test_a_request_is_accepted(offered, chosen):
    status, headers, body, driver = answered(request("/mqtt?x=1", sec_websocket_protocol=offered))
    assert status == b"HTTP/1.1 101 Switching Protocols"
    assert headers[b"sec-websocket-accept"] == ACCEPT.encode()
    assert headers[b"sec-websocket-protocol"] == chosen
    assert b"sec-websocket-extensions" not in headers
    assert (body, driver.closed) == (b"", None)


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (request("/"), 404, "/mqtt"),
        (request("/mqtt/x"), 404, "/mqtt"),
        (request(method="POST"), 405, "GET"),
        (request(upgrade=None, connection=None), 426, "WebSocket"),
        (request(upgrade="h2c"), 426, "WebSocket"),
        (request(connection="keep-alive"), 426, "WebSocket"),
        (request(sec_websocket_version="8"), 426, "13"),
        (request(sec_websocket_version=None), 426, "13"),
        (request(sec_websocket_version="13\r\nSec-WebSocket-Version: 13"), 426, "13"),
        (request(sec_websocket_key=None), 400, "Sec-WebSocket-Key"),
        (request(sec_websocket_key="YQ=="), 400, "Sec-WebSocket-Key"),
        (request(sec_websocket_key="!" * 24), 400, "Sec-WebSocket-Key"),
        (request(sec_websocket_key=f"{KEY}\r\nSec-WebSocket-Key: {KEY}"), 400, "Sec-WebSocket-Key"),
        (request(sec_websocket_protocol=None), 400, "mqtt is to be offered"),
        (request(sec_websocket_protocol="wamp, MQTT"), 400, "mqtt is to be offered"),
        (request(version="HTTP/1.0"), 400, "HTTP/1.1"),
        (request(content_length="5") + b"hello", 400, "without a body"),
        (request(host=None), 400, "host"),
        (request(origin="https://evil.example"), 403, "adapters.mqtt.websocket_origins"),
        (encode(Connect(version=5, client_id="c"), 5), 400, "speaks WebSocket"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "speaks WebSocket"),
        (request(cookie="x" * HEAD_BYTES_MAX), 431, "larger than"),
        (request(cookie="x" * HEAD_BYTES_MAX)[:-2], 431, f"larger than {HEAD_BYTES_MAX} bytes"),
    ],
)
def test_a_request_is_refused(data, status, said):
    line, headers, body, driver = answered(data)
    assert line.startswith(b"HTTP/1.1 %d " % status)
    assert headers[b"content-type"] == b"application/problem+json"
    assert int(headers[b"content-length"]) == len(body)
    assert b"close" in headers[b"connection"]
    assert said in body.decode()
    assert driver.closed in body.decode()
    if status == 426:
        assert (headers[b"upgrade"], headers[b"sec-websocket-version"]) == (b"websocket", b"13")
    driver.raw(request())  # it reads no more
    assert driver.adapter.take_output() == b""
    assert driver.adapter.deadline_ms() is None


PAGE = "https://app.example"


@pytest.mark.parametrize(
    ("said", "options", "accepted"),
    [
        ({}, {}, True),  # no browser
        ({"origin": "http://localhost:8083"}, {}, True),
        ({"origin": "https://127.0.0.1:8083", "host": "127.0.0.1:8083"}, {}, True),
        ({"origin": "http://[::1]:8083", "host": "[::1]:8083"}, {}, True),
        ({"origin": "http://localhost:3000"}, {}, False),
        ({"origin": "null"}, {}, False),
        ({"origin": "http://["}, {}, False),
        ({"origin": PAGE}, {"websocket_origins": (PAGE,)}, True),
        ({"origin": PAGE}, {"websocket_origins": ("*",)}, True),
        ({"origin": PAGE + ".evil.example"}, {"websocket_origins": (PAGE,)}, False),
        ({"origin": "http://rebound.example:8083", "host": "rebound.example:8083"}, {}, False),
        (
            {"origin": "http://box.example:8083", "host": "box.example:8083"},
            {"websocket_hosts": ("Box.example",)},
            True,
        ),
    ],
)
def test_pages_of_other_sites_do_not_reach_this_machine(said, options, accepted):
    status, _, _, _ = answered(request(**said), **options)
    assert status.startswith(b"HTTP/1.1 101 " if accepted else b"HTTP/1.1 403 ")


def test_a_page_from_the_gateways_own_name_connects_from_elsewhere():
    elsewhere = replace(WEB, peer=("192.0.2.7", 5000), loopback=False)
    said = {"origin": "https://gateway.example", "host": "gateway.example"}
    assert answered(request(**said), elsewhere)[0].startswith(b"HTTP/1.1 101 ")


def test_a_refusal_quotes_little_of_what_it_refuses():
    _, _, body, _ = answered(request(sec_websocket_key="k" * 8_000))
    assert len(body) < 300


def test_two_origins_are_none():
    data = request().replace(b"Upgrade: ", b"Origin: http://localhost:8083\r\nOrigin: http://evil\r\nUpgrade: ", 1)
    assert answered(data)[0].startswith(b"HTTP/1.1 400 ")


def test_a_client_that_sends_no_request_is_let_go():
    driver = WebDriver()
    assert driver.adapter.deadline_ms() == 0
    driver.adapter.tick(now_ms=driver.now_ms)
    driver.raw(request()[:50])
    driver.now_ms = driver.adapter.deadline_ms()
    driver.act(driver.adapter.tick(now_ms=driver.now_ms))
    assert driver.adapter.take_output().startswith(b"HTTP/1.1 408 ")
    assert driver.closed is not None


def test_the_time_for_connect_begins_with_the_connection():
    driver = WebDriver()
    driver.tick()
    driver.now_ms += 9_000
    driver.open()
    driver.now_ms = driver.adapter.deadline_ms()
    driver.tick()
    (close,) = driver.heard
    assert (close.opcode, close.data[:2]) == (Opcode.CLOSE, b"\x03\xf0")


# ---- packets in frames


def test_a_whole_life():
    driver = connected(client_id="web")
    (suback,) = driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#", qos=1),)))
    assert isinstance(suback, Suback)
    assert driver.send(Pingreq()) == [Pingresp()]
    driver.send(*[Publish(topic="t/a", payload=b"x", qos=1, packet_id=n) for n in range(1, 4)])
    assert [type(packet) for packet in driver.store()] == [Puback] * 3
    assert driver.deliver(batch_of(Message("t/a", b"hello"))) == 1
    (published,) = driver.out()
    assert (published.topic, published.payload) == ("t/a", b"hello")
    driver.send(Disconnect())
    driver.flush()
    assert driver.closed == ""


def test_packets_are_cut_and_joined_in_any_way():
    driver = connected()
    data = b"".join(publish(n) for n in range(1, 7))
    driver.raw(frame(2, data[:5]))
    driver.raw(frame(2, data[5:9], fin=False) + frame(9, b"between") + frame(0, data[9:20], fin=False))
    driver.raw(frame(0, b"", fin=False) + frame(0, data[20:30]) + frame(2, b"") + frame(2, data[30:]))
    assert [message.body for message in driver.published()] == [b"%d" % n for n in range(1, 7)]
    driver.out()
    assert [(pong.opcode, bytes(pong.data)) for pong in driver.heard] == [(Opcode.PONG, b"between")]


def test_a_frame_is_not_waited_for():
    driver = connected()
    data = frame(2, publish(1) + publish(2))
    driver.raw(data[: 6 + len(publish(1))])
    assert len(driver.published()) == 1
    driver.raw(data[6 + len(publish(1)) :])
    assert len(driver.published()) == 1


def test_a_frame_of_any_length_holds_packets_of_limited_length():
    driver = connected(options=Options(max_packet_bytes=1000))
    header = b"\x82\xff" + (1 << 62).to_bytes(8, "big") + bytes(4)
    driver.raw(header + publish(1) + b"\x30\xff\xff\x7f")
    assert len(driver.published()) == 1
    (disconnect,) = driver.out()
    assert disconnect.code == ReasonCode.PACKET_TOO_LARGE


def test_all_output_of_a_turn_is_one_frame():
    driver = connected()
    driver.send(*[Publish(topic="t/a", payload=b"x", qos=1, packet_id=n) for n in range(1, 101)])
    driver.act(driver.adapter.completed(driver.take(port.Publish)[0].token, port.DONE, now_ms=driver.now_ms))
    out = driver.adapter.take_output()
    assert out == b"\x82\x7e" + (400).to_bytes(2, "big") + out[4:]
    assert len(out) == 404


def test_a_large_output_is_in_frames_that_clients_take():
    driver = connected()
    driver.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t/#"),)))
    driver.deliver(batch_of(*[Message("t/a", bytes(100_000), qos=0) for _ in range(6)]))
    driver.client.receive_data(driver.adapter.take_output())
    frames = [event for event in driver.client.events_received() if isinstance(event, Frame)]
    assert [len(one.data) for one in frames[:2]] == [FRAME_BYTES_MAX] * 2
    assert all(one.fin and one.opcode is Opcode.BINARY for one in frames)
    assert sum(len(one.data) for one in frames) > 600_000


# ---- what is none


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, b"text"), 1003),
        (frame(2, b"x", mask=False), 1002),
        (frame(2, b"x", rsv=0x40), 1002),
        (frame(2, b"x", rsv=0x10), 1002),
        (frame(0, b"x"), 1002),
        (frame(2, b"", fin=False) + frame(2, b""), 1002),
        (frame(2, b"", fin=False) + frame(1, b""), 1003),
        (b"\x83\x80" + bytes(4), 1002),
        (b"\x8b\x80" + bytes(4), 1002),
        (b"\x09\x80" + bytes(4), 1002),
        (b"\x89\xfe" + b"\x00\x7e" + bytes(130), 1002),
        (b"\x82\xfe\x00\x05" + bytes(9), 1002),
        (b"\x82\xff" + (65_535).to_bytes(8, "big") + bytes(4), 1002),
        (b"\x82\xff" + b"\xff" * 8 + bytes(4), 1002),
        (frame(8, b"x"), 1002),
        (frame(8, b"\x03\xed"), 1002),
        (frame(8, b"\x00\x00"), 1002),
        (frame(8, b"\x03\xe8\xff"), 1007),
    ],
)
def test_what_breaks_the_rules_ends_the_connection(data, code):
    driver = connected()
    driver.raw(frame(2, publish(1)) + data + frame(2, publish(2)))
    assert [message.body for message in driver.published()] == [b"1"]
    driver.out()
    (close,) = driver.heard
    assert (close.opcode, int.from_bytes(close.data[:2], "big")) == (Opcode.CLOSE, code)
    assert driver.closed
    driver.raw(frame(2, publish(3)))
    assert driver.published() == []
    assert driver.deliver(batch_of(Message("t/a", b"late"))) == 0


# ---- the end


def test_a_ping_is_answered_once_a_read():
    driver = connected()
    driver.raw(b"".join(frame(9, b"%d" % n) for n in range(100)) + frame(10, b"unasked"))
    driver.out()
    assert [(pong.opcode, bytes(pong.data)) for pong in driver.heard] == [(Opcode.PONG, b"99")]


def test_nothing_follows_the_close_frame_of_a_read_that_ends_the_connection():
    driver = connected()
    driver.raw(frame(9, b"there?") + frame(2, b"\xf0\x01\x00"))  # AUTH, and no method was agreed on
    driver.out()
    assert [one.opcode for one in driver.heard] == [Opcode.PONG, Opcode.CLOSE]


def test_a_client_that_closes_in_the_read_that_ends_its_connection_has_one_answer():
    driver = connected()
    driver.raw(frame(2, b"\xf0\x01\x00") + frame(8, b"\x03\xe8"))
    driver.out()
    assert [one.opcode for one in driver.heard] == [Opcode.CLOSE]
    assert driver.closed is not None


def test_the_client_closes():
    driver = connected(will=None)
    driver.client.send_close(1001, "going")
    driver.raw(frame(2, publish(1)) + b"".join(driver.client.data_to_send()))
    assert len(driver.published()) == 1
    assert driver.closed == ""
    driver.out()
    assert driver.client.close_rcvd.code == 1001
    assert driver.calls(DropWill) == []
    assert driver.adapter.deadline_ms() is None


def test_a_close_frame_without_a_code_gets_one_without():
    driver = connected()
    driver.client.send_close()
    driver.flush()
    assert driver.adapter.take_output() == b"\x88\x00"


def test_after_disconnect_both_sides_say_goodbye():
    driver = connected()
    driver.send(Disconnect())
    assert driver.client.close_rcvd.code == 1000
    assert driver.closed is None
    assert driver.adapter.wants_data
    driver.flush()
    assert driver.closed == ""


def test_a_client_that_says_no_goodbye_is_not_waited_for():
    driver = connected()
    driver.send(Disconnect())
    driver.client.data_to_send()
    assert driver.adapter.deadline_ms() == driver.now_ms + CLOSING_MS
    driver.tick(CLOSING_MS - 1)
    assert driver.closed is None
    driver.raw(frame(2, publish(1)) + frame(9, b"x"))
    assert driver.adapter.take_output() == b""
    driver.tick(1)
    assert (driver.closed, driver.published()) == ("", [])


def test_why_a_connection_is_refused_is_said_twice():
    driver = WebDriver().open()
    (connack,) = driver.send(Connect(version=5, client_id="x" * 300))
    assert isinstance(connack, Connack)
    assert connack.code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
    (close,) = driver.heard
    assert close.data == b"\x03\xf0a client identifier has at most 256 bytes"
    assert driver.closed is None
    driver.flush()
    assert driver.closed == "a client identifier has at most 256 bytes"


def test_a_connection_whose_session_is_taken_over_ends_at_once():
    driver = connected()
    driver.act(driver.adapter.superseded(now_ms=driver.now_ms))
    (disconnect,) = driver.out()
    assert disconnect.code == ReasonCode.SESSION_TAKEN_OVER
    assert driver.closed
    assert driver.client.state is State.CLOSING


@pytest.mark.parametrize("opened", [True, False])
def test_the_gateway_goes_down(opened):
    driver = connected() if opened else WebDriver()
    driver.act(driver.adapter.shutdown(now_ms=driver.now_ms))
    assert driver.closed
    if opened:
        driver.out()
        assert driver.client.close_rcvd.code == 1001
    else:
        assert driver.adapter.take_output().startswith(b"HTTP/1.1 503 ")


def test_a_lost_connection_leaves_its_will_to_the_gateway():
    driver = connected()
    driver.lose()
    assert driver.take(Call) == []
    assert driver.adapter.deliver(Deliveries(batch_of(Message("t/a", b"")), [0], [(1,)]), now_ms=driver.now_ms) == 0
