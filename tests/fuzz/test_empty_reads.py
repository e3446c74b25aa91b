"""A read of nothing says that the peer is just not read from: it changes nothing, wherever it comes."""

import pytest
from websockets.frames import Frame, Opcode

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connect, Publish
from tests.support.amqp.amqp_peer import Peer, publish
from tests.support.http.http_driver import Gateway, Http2Client, request
from tests.support.mqtt.mqtt_driver import Driver
from tests.support.mqtt.mqtt_websocket import WebDriver
from tests.support.mqtt.mqtt_websocket import request as upgrade


def cut(data: bytes, *, between: bool) -> list[bytes]:
    """Returns data in pieces, with or without empty reads between them."""
    pieces = [data[at : at + 11] for at in range(0, len(data), 11)]
    return [one for piece in pieces for one in ((b"", piece, b"") if between else (piece,))]


MQTT = [encode(Connect(version=5, client_id="c", keep_alive_s=1), 5)]
MQTT += [encode(Publish(topic="t/a", payload=b"x" * 30, qos=1, packet_id=n), 5) for n in range(1, 4)]


def mqtt(*, between: bool) -> object:
    driver = Driver()
    for piece in cut(b"".join(MQTT), between=between):
        driver.feed(piece)
    return driver.published(), driver.adapter.take_output(), driver.closed


def websocket(*, between: bool) -> object:
    driver = WebDriver()
    frames = b"".join([Frame(Opcode.BINARY, packet).serialize(mask=True) for packet in MQTT])
    for piece in cut(upgrade() + frames, between=between):
        driver.raw(piece)
    return driver.published(), driver.adapter.take_output(), driver.closed


def http1(*, between: bool) -> object:
    gateway = Gateway()
    data = request("POST", "/topics/a/b", body=b"x" * 40) + request("GET", "/topics/a/b")
    said = b"".join([gateway.feed(piece) for piece in cut(data, between=between)])
    return [message.body for message in gateway.messages], said.count(b"HTTP/1.1 "), gateway.closed


def http2(*, between: bool) -> object:
    gateway = Gateway()
    client = Http2Client(gateway, eager=False)
    stream = client.send("POST", "/topics/a/b", body=b"x" * 40)
    for piece in cut(client.h2.data_to_send(), between=between):
        client.read(gateway.feed(piece))
    client.flush()
    return [message.body for message in gateway.messages], client.answer(stream).status, gateway.closed


def amqp(*, between: bool) -> object:
    peer = Peer().open()
    for piece in cut(publish(1, "amq.topic", "a.b", b"x" * 40) * 3, between=between):
        peer.feed(piece)
    return [message.body for message in peer.published()]


@pytest.mark.parametrize("run", [mqtt, websocket, http1, http2, amqp])
def test_a_read_of_nothing_changes_nothing(run):
    assert run(between=True) == run(between=False)


@pytest.mark.parametrize("make", [Driver, lambda: WebDriver().open()])
def test_a_client_of_mqtt_is_heard_while_it_is_not_read(make):
    driver = make()
    driver.connect(keep_alive_s=10)
    driver.now_ms += 14_999
    driver.raw(b"") if isinstance(driver, WebDriver) else driver.feed(b"")
    driver.tick(14_999)
    assert driver.closed is None
    driver.tick(1)
    driver.tick(5_000)
    assert driver.closed is not None
