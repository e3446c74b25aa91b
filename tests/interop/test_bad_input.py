"""Random and truncated bytes at every port: the peer that sent them is refused, and nobody else notices."""

import contextlib
import random
import socket
import threading

import httpx
import paho.mqtt.client as mqtt
import pytest

SEEDS = 40
BEGINNINGS = {
    "mqtt": [
        b"\x10\x0f\0\4MQTT\4\2\0\x3c\0\3bad",
        b"\x10\x10\0\4MQTT\5\2\0\x3c\0\0\3bad\x32\x09\0\3a/b\0\1\0x",
    ],
    "amqp": [b"AMQP\0\0\x09\x01"],
    "http": [
        b"POST /topics/bad HTTP/1.1\r\nhost: localhost\r\ncontent-length: 3\r\n\r\nabc",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    ],
}


@pytest.fixture
def bystander(shared_gateway):
    """Runs a client beside the test, and checks that it still publishes and receives."""
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    ready, got = threading.Event(), threading.Semaphore(0)
    lost = []
    client.on_connect = lambda *_: client.subscribe("bystander/#", 1)
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda *_: got.release()
    client.on_disconnect = lambda _client, _data, _flags, reason, *_: lost.append(reason)
    client.connect("127.0.0.1", shared_gateway.port("mqtt"))
    client.loop_start()
    assert ready.wait(10)

    def check():
        client.publish("bystander/x", b"still here", qos=1).wait_for_publish(10)
        assert got.acquire(timeout=60)
        assert not lost

    yield check
    client.disconnect()
    client.loop_stop()


def inputs(name, chance):
    """Returns a valid beginning that is cut or damaged, with noise behind it."""
    whole = chance.choice(BEGINNINGS[name])
    cut = whole[: chance.randrange(len(whole) + 1)]
    noise = chance.randbytes(chance.randrange(200))
    if chance.random() < 0.3:
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        return bytes(damaged) + noise
    return cut + noise


@pytest.mark.parametrize("name", ["mqtt", "amqp", "http"])
def test_noise_on_a_stream_hurts_only_its_sender(shared_gateway, bystander, name):
    for seed in range(SEEDS):
        chance = random.Random(f"{name} {seed}")
        address = ("127.0.0.1", shared_gateway.port(name))
        with contextlib.suppress(ConnectionError), socket.create_connection(address, timeout=60) as peer:
            peer.sendall(inputs(name, chance))
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(65536):  # until it closes: a half-closed stream is never kept
                pass
        if seed % 10 == 0:
            bystander()
    bystander()
    assert shared_gateway.answers("/readyz")
    assert "an adapter failed" not in shared_gateway.log.read_text()


def test_noise_in_datagrams_is_answered_or_passed_over(shared_gateway, bystander):
    request = b"\x44\x02\x00\x01tokn\xb3bad\x04noise\xffx"
    chance = random.Random("coap")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.connect(("127.0.0.1", shared_gateway.port("coap")))
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)  # all answers fit, read or not
        for _ in range(SEEDS * 10):
            damaged = bytearray(
                request[: chance.randrange(1, len(request) + 1)] + chance.randbytes(chance.randrange(8))
            )
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
            peer.send(damaged)
        peer.settimeout(10)
        peer.send(b"\x40\x00\x7e\x57")  # a ping (RFC 7252, 4.3): it is still answered
        while peer.recv(2048) != b"\x70\x00\x7e\x57":
            pass
    bystander()
    assert "an adapter failed" not in shared_gateway.log.read_text()


def test_a_refused_request_leaves_the_other_streams_of_its_connection_alone(shared_gateway):
    with httpx.Client(http2=True, http1=False, base_url=shared_gateway.url) as client:
        assert client.post("/topics/good/a", content=b"1").status_code == 201
        assert client.post("/topics/%23", content=b"1").status_code == 400
        assert (
            client.post("/events", content=b"{", headers={"content-type": "application/cloudevents+json"}).status_code
            == 400
        )
        assert client.get("/topics/good/a").content == b"1"


def test_who_closes_its_half_still_gets_its_answer(shared_gateway):
    with socket.create_connection(("127.0.0.1", shared_gateway.port("http")), timeout=60) as peer:
        peer.sendall(b"POST /topics/half/a HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\n\r\n1")
        peer.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: peer.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 201 ")


def test_a_client_that_goes_on_sending_reads_why_it_was_closed(shared_gateway):
    """A socket that is closed with bytes unread is reset, and takes back what its peer had not read yet."""
    with socket.create_connection(("127.0.0.1", shared_gateway.port("mqtt")), timeout=60) as peer:
        peer.sendall(b"\x10\x10\0\4MQTT\5\2\0\x3c\0\0\3bad")
        assert peer.recv(1)[0] == 0x20
        peer.sendall(b"\xf0\0")  # AUTH without a method
        for _ in range(200):  # the gateway does not read what follows
            peer.sendall(b"\xc0\0" * 1_000)
        answer = bytearray()
        while some := peer.recv(65536):  # a reset would raise
            answer += some
        assert b"\xe0" in answer  # DISCONNECT
    assert shared_gateway.answers("/readyz")
