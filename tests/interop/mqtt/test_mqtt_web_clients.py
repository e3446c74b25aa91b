"""MQTT over WebSocket and TLS with real clients: paho-mqtt, aiomqtt, amqtt's client, the client of websockets."""

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from aiomqtt import Client as AiomqttClient
from amqtt.client import MQTTClient
from cryptography.x509 import DNSName, IPAddress
from paho.mqtt import client as paho
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as connect_websocket

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connect, Pingreq
from tests.support.mqtt.paho_client import TIMEOUT_S, VERSIONS, PahoClient, fresh
from tests.support.process.certificates import Authority

LARGE = bytes(range(256)) * 3_900  # just under 1 MiB

Make = Callable[..., PahoClient]


@pytest.fixture
def client() -> Iterator[Make]:
    made: list[PahoClient] = []

    def make(port: int, version: int = paho.MQTTv5, *, ca_file: str | None = None, **options: Any) -> PahoClient:
        one = PahoClient(port, version, **options)
        if ca_file is not None:
            one.paho.tls_set(ca_certs=ca_file)
        made.append(one)
        return one.connect()

    yield make
    for one in made:
        one.close()


def exchange(subscriber: PahoClient, publisher: PahoClient) -> None:
    """Checks that messages of every QoS, and a large one, arrive in their order."""
    topic = fresh("web")
    assert subscriber.subscribe(f"{topic}/#", qos=2) == [2]
    for qos in (0, 1, 2):
        for number in range(20):
            publisher.publish(f"{topic}/{number % 3}", b"%d" % number, qos)
        assert subscriber.bodies(20) == [b"%d" % number for number in range(20)]
    publisher.publish(topic, LARGE)
    assert subscriber.bodies(1) == [LARGE]


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_paho(shared_gateway, client, version):
    port = shared_gateway.port("mqtt-ws")
    subscriber = client(port, version, transport="websockets")
    exchange(subscriber, client(port, version, transport="websockets"))
    plain = client(shared_gateway.port("mqtt"), version)
    exchange(subscriber, plain)
    exchange(plain, subscriber)


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
def test_paho_at_the_port_of_http(shared_gateway, client, version):
    port = shared_gateway.port("http")
    subscriber = client(port, version, transport="websockets")
    exchange(subscriber, client(port, version, transport="websockets"))
    exchange(subscriber, client(shared_gateway.port("mqtt"), version))
    url = f"{shared_gateway.url}/topics/{fresh('web')}"
    with urllib.request.urlopen(url, data=b"x", timeout=TIMEOUT_S) as answer:  # HTTP goes on beside it
        assert answer.status == 201


@pytest.mark.anyio
@pytest.mark.parametrize("transport", ["tcp", "websockets"])
async def test_aiomqtt(shared_gateway, transport):
    port = shared_gateway.port("mqtt-ws" if transport == "websockets" else "mqtt")
    topic = fresh("aiomqtt")
    async with AiomqttClient("127.0.0.1", port, transport=transport, protocol=paho.MQTTv5) as one:
        await one.subscribe(f"{topic}/#", qos=2)
        for qos in (0, 1, 2):
            await one.publish(f"{topic}/{qos}", b"%d" % qos, qos=qos, timeout=TIMEOUT_S)
        await one.publish(topic, LARGE, qos=1, timeout=TIMEOUT_S)
        found = []
        async for message in one.messages:
            found.append(message.payload)
            if len(found) == 4:
                break
    assert found == [b"0", b"1", b"2", LARGE]


@pytest.mark.anyio
async def test_amqtt(shared_gateway):
    topic = fresh("amqtt")
    one = MQTTClient(client_id=fresh("amqtt"), config={"auto_reconnect": False})
    await one.connect(f"ws://127.0.0.1:{shared_gateway.port('mqtt-ws')}/mqtt")
    try:
        await one.subscribe([(f"{topic}/#", 2)])
        for qos in range(3):
            await one.publish(f"{topic}/{qos}", b"%d" % qos, qos)
        found = [await one.deliver_message(timeout_duration=TIMEOUT_S) for _ in range(3)]
        assert {bytes(message.data) for message in found} == {b"0", b"1", b"2"}
    finally:
        await one.disconnect()


# ---- TLS


def test_tls_and_secure_websocket(new_gateway, client, tmp_path: Path):
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "stranger")
    server = authority.issue("localhost", DNSName("localhost"), IPAddress(ip_address("127.0.0.1")), server=True)
    files = {"HEADGATE__TLS__CERT_FILE": str(server.cert_file), "HEADGATE__TLS__KEY_FILE": str(server.key_file)}
    gateway = new_gateway(environ=files).start()
    secure, web = gateway.port("mqtts"), gateway.port("mqtt-wss")
    for version in VERSIONS.values():
        plain = client(secure, version, ca_file=str(authority.file))
        exchange(plain, client(web, version, ca_file=str(authority.file), transport="websockets"))
    distrustful = ssl.create_default_context(cafile=stranger.file)
    for port in (secure, web):
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as wire,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            distrustful.wrap_socket(wire, server_hostname="localhost")
    status = json.loads(gateway.admin("/status"))
    assert {one["port"] for one in status["listeners"] if one["secure"]} >= {secure, web}


# ---- what is no client of MQTT


def websocket(gateway: Any, path: str = "/mqtt", listener: str = "mqtt-ws", **options: Any) -> Any:
    options = {"subprotocols": ["mqtt"]} | options
    return connect_websocket(f"ws://127.0.0.1:{gateway.port(listener)}{path}", open_timeout=TIMEOUT_S, **options)


def test_a_text_frame_is_refused(shared_gateway):
    with websocket(shared_gateway) as one:
        assert one.subprotocol == "mqtt"
        one.send("text")
        with pytest.raises(ConnectionClosed) as closed:
            one.recv(timeout=TIMEOUT_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1003


@pytest.mark.parametrize("listener", ["mqtt-ws", "http"])
@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/", {}, 404),
        ("/mqtt", {"subprotocols": ["wamp"]}, 400),
        ("/mqtt", {"subprotocols": None}, 400),
        ("/mqtt", {"origin": "https://evil.example"}, 403),
    ],
)
def test_a_handshake_is_refused(shared_gateway, path, options, status, listener):
    with pytest.raises(InvalidStatus) as refused, websocket(shared_gateway, path, listener, **options):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["status"] == status


def test_a_request_that_is_no_handshake_is_told_so(shared_gateway):
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{shared_gateway.port('mqtt-ws')}/mqtt", timeout=TIMEOUT_S)
    with refused.value as answer:
        assert answer.code == 426
        assert answer.headers["upgrade"] == "websocket"


def test_pings_packets_in_pieces_and_goodbye(shared_gateway):
    data = encode(Connect(version=5, client_id=fresh("pieces")), 5) + encode(Pingreq(), 5) * 3
    with websocket(shared_gateway) as one:
        assert one.ping().wait(TIMEOUT_S)
        one.send([data[at : at + 7] for at in range(0, len(data), 7)])  # a message in fragments
        received = b""
        while not received.endswith(b"\xd0\x00" * 3):
            received += one.recv(timeout=TIMEOUT_S)
        assert received[0] == 0x20
        one.send(b"\xe0")
        one.send(b"\x00")
        with pytest.raises(ConnectionClosed) as closed:
            one.recv(timeout=TIMEOUT_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1000
