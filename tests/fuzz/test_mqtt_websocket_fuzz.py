"""Random, truncated and bit-flipped bytes to a WebSocket: an answer of HTTP or WebSocket, and never an exception."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connect, Disconnect, Pingreq, Publish
from tests.support.mqtt.mqtt_websocket import WebDriver, request

PACKETS = [
    encode(packet, 5)
    for packet in (
        Connect(version=5, client_id="c"),
        Publish(topic="t", payload=b"x" * 200, qos=1, packet_id=1),
        Pingreq(),
        Publish(topic="t", payload=b"", qos=2, packet_id=2),
        Disconnect(),
    )
]
CONTROL = [Frame(Opcode.PING, b"p"), Frame(Opcode.PONG, b""), Frame(Opcode.CLOSE, b"\x03\xe8bye")]
FRAMES = [Frame(Opcode.BINARY, packet) for packet in PACKETS] + CONTROL


def run(wire: bytes, random: Random) -> None:
    driver = WebDriver()
    at = 0
    while at < len(wire):
        size = random.randrange(1, 80)
        driver.raw(wire[at : at + size])
        driver.adapter.take_output()
        at += size
        deadline_ms = driver.adapter.deadline_ms()
        assert deadline_ms is None or deadline_ms < driver.now_ms + 100_000
    driver.lose()


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bits(seed):
    random = Random(seed)
    wire = bytearray(request() + b"".join(frame.serialize(mask=True) for frame in FRAMES))
    for _ in range(random.randrange(1, 6)):
        wire[random.randrange(len(wire))] ^= 1 << random.randrange(8)
    run(bytes(wire), random)


@pytest.mark.parametrize("seed", range(40))
def test_frames_in_any_order(seed):
    random = Random(seed)
    run(request() + b"".join(random.choice(FRAMES).serialize(mask=True) for _ in range(12)), random)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes(data, upgraded):
    run(request() * upgraded + data, Random(1))


NAMES = (
    "host",
    "upgrade",
    "connection",
    "sec_websocket_key",
    "sec_websocket_version",
    "sec_websocket_protocol",
    "origin",
)
VALUES = st.text(st.characters(max_codepoint=255, blacklist_characters="\r\n"), max_size=40)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3))
def test_any_header(headers):
    run(request(**headers), Random(1))
