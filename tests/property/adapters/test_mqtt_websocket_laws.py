"""However a client cuts its packets into frames, and the network its frames into reads, the same packets arrive."""

from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connect, Publish
from adapters.mqtt.websocket.frames import Frames
from tests.support.mqtt.mqtt_websocket import WebDriver, request

BODIES = [b"", b"1", b"x" * 100, b"y" * 5_000, bytes(range(256)) * 300]
TRAFFIC = b"".join(
    encode(Publish(topic="t/a", payload=body, qos=1, packet_id=n), 5) for n, body in enumerate(BODIES, 1)
)


@st.composite
def pieces(draw, data: bytes) -> list[bytes]:
    """Draws some data cut at any places, some of them the same."""
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@st.composite
def framed(draw, data: bytes) -> bytes:
    """Draws data in the library's frames: whole messages and fragments, with pings between them."""
    wire, fragmented = b"", False
    for piece in draw(pieces(data)):
        fin = draw(st.booleans())
        opcode = Opcode.CONT if fragmented else Opcode.BINARY
        wire += Frame(opcode, piece, fin).serialize(mask=True)
        if draw(st.booleans()):
            wire += Frame(Opcode.PING, draw(st.binary(max_size=125))).serialize(mask=True)
        fragmented = not fin
    return wire


@given(st.data())
def test_any_frames_in_any_reads_bring_the_same_packets(data):
    wire = request() + data.draw(framed(encode(Connect(version=5, client_id="c"), 5) + TRAFFIC))
    driver = WebDriver()
    for read in data.draw(pieces(wire)):
        driver.raw(read)
    assert [message.body for message in driver.published()] == BODIES
    assert driver.closed is None


@given(st.data(), st.binary(max_size=2_000))
def test_reads_of_any_size_bring_the_same_payload(data, payload):
    wire = data.draw(framed(payload))
    whole, cut = Frames(), Frames()
    assert whole.receive(wire) == payload
    assert b"".join(cut.receive(read) for read in data.draw(pieces(wire))) == payload
    assert whole.fault is cut.fault is None
    assert whole.ping == cut.ping
