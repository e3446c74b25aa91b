"""Random, truncated and damaged bytes: an answer in HTTP's own terms and a closed connection, never an exception."""

from random import Random

import h2.config
import h2.connection
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.api.message import Message
from tests.support.http.http_driver import Gateway, parse_responses, request

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GOOD = [
    request("POST", "/topics/a/b?qos=1&key=k", ("ce-ext", "%20"), body=b"hello"),
    request("POST", "/events", ("content-type", "application/cloudevents+json"), body=b'{"specversion":"1.0"}'),
    request("GET", "/subscribe?filter=%23", ("last-event-id", "1.0")),
    request("GET", "/topics/a", ("upgrade", "h2c"), ("connection", "upgrade"), ("http2-settings", "AAMAAABk")),
    b"POST /topics/c HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
]


def exercise(gateway: Gateway, data: bytes) -> bytes:
    """Feeds bytes, lets time pass, offers a message, and shuts down: no step may raise."""
    out = gateway.feed(data)
    gateway.deliver([Message(address="a/b", body=b"1")])
    out += gateway.adapter.take_output()
    for _ in range(4):
        out += gateway.tick(after_ms=40_000)
    gateway.act(gateway.adapter.shutdown(now_ms=gateway.now_ms))
    out += gateway.adapter.take_output()
    gateway.tick(after_ms=40_000)
    assert gateway.closed
    assert gateway.adapter.deadline_ms() is None
    gateway.adapter.lost(now_ms=gateway.now_ms)
    return out


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    out = exercise(Gateway(), data)
    assert not out or data.startswith(PREFACE) or out.startswith(b"HTTP/1.1 ")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_behind_the_preface(data: bytes) -> None:
    exercise(Gateway(), PREFACE + data)
    exercise(Gateway(alpn="h2"), data)


@settings(deadline=None)
@given(st.binary(max_size=100), st.integers(0, 9), st.integers(0, 255), st.sampled_from([0, 1, 2, 3]))
def test_random_frames(payload: bytes, kind: int, flags: int, stream: int) -> None:
    frame = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    exercise(Gateway(), PREFACE + b"\0\0\0\4\0\0\0\0\0" + frame * 3)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_http_1_1(seed: int) -> None:
    random = Random(seed)
    for good in GOOD:
        for _ in range(20):
            exercise(Gateway(), _damage(good * 2, random))


@pytest.mark.parametrize("seed", range(30))
def test_damaged_http_2(seed: int) -> None:
    random = Random(seed)
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    for stream in (1, 3, 5):
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "h"), (":path", "/topics/a"), ("ce-ext", "x")]
        client.send_headers(stream, head)
        client.send_data(stream, b"x" * 20, end_stream=stream != 5)
    client.ping(b"12345678")
    client.increment_flow_control_window(100, 5)
    client.reset_stream(5)
    good = client.data_to_send()
    for _ in range(20):
        exercise(Gateway(), good[:24] + _damage(good[24:], random))


@pytest.mark.parametrize("good", GOOD)
def test_truncated(good: bytes) -> None:
    for size in range(len(good)):
        gateway = Gateway()
        out = exercise(gateway, good[:size])
        answers = parse_responses(out)
        assert all(answer.status in {200, 408} for answer in answers)
        assert gateway.messages == []


@pytest.mark.parametrize("seed", range(10))
def test_bad_targets_and_headers(seed: int) -> None:
    random = Random(seed)
    alphabet = b'/topics?filter=&%+#;:.aA01\xff\xc3"\\ '
    for _ in range(50):
        target = b"/" + bytes(random.choice(alphabet) for _ in range(random.randrange(30)))
        name = random.choice([b"authorization", b"content-type", b"ce-id", b"accept", b"origin", b"last-event-id"])
        value = bytes(random.choice(alphabet) for _ in range(random.randrange(20)))
        method = random.choice([b"GET", b"POST", b"OPTIONS", b"HEAD"])
        exercise(Gateway(), b"%b %b HTTP/1.1\r\nhost: h\r\n%b: %b\r\n\r\n" % (method, target, name, value))


def _damage(data: bytes, random: Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(damaged))
        if random.random() < 0.3:
            del damaged[at : at + random.randrange(1, 8)]
        else:
            damaged[at] = random.randrange(256)
        if not damaged:
            break
    return bytes(damaged)
