"""Tests of statements of RFC 7252, 7641, 7959 and 8323 that the tables of `tests/conformance/` name."""

from random import Random
from typing import NamedTuple

import msgspec
import pytest

from adapters.coap.codec.registry import (
    BLOCK1,
    BLOCK2,
    CON,
    CONTENT,
    CREATED,
    DELETE,
    GET,
    MAX_AGE,
    OBSERVE,
    PUT,
    SIZE2,
)
from adapters.coap.codec.wire import Packet, encode_options, encode_uint, read_uint
from adapters.coap.messages.request import Block
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream import CoapConnection, StreamsContext
from adapters.coap.stream.frames import encode_frame, read_head
from adapters.coap.stream.signals import ABORT, CSM, MAX_MESSAGE_SIZE, PING, PONG, RELEASE
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import ConnectionInfo, Outcome
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, options_of
from tests.support.coap.coap_streams import CoapStreamPeer
from tests.support.coap.coap_streams import request as stream_request

LAST = Message(address="a", body=b"1", id="1", content_type="text/plain")
LARGE = Message(address="a", body=bytes(range(100)), id="1")


def observe(value: int) -> tuple[tuple[int, bytes], ...]:
    return ((OBSERVE, encode_uint(value)),)


@pytest.mark.parametrize("code", [PUT, DELETE])
def test_a_request_done_again_leaves_what_it_left_the_first_time(code: int) -> None:
    """(RFC 7252, 5.1) The second one is another message: it is no repetition of the first one."""
    driver = Driver(last=LAST)
    answers = []
    for mid in (1, 2):
        answers.append(dotted(driver.ask("t/a", code, payload=b"v", mid=mid, token=b"%d" % mid).code))
        driver.last = driver.stored[-1]
    assert answers == [{PUT: "2.04", DELETE: "2.02"}[code]] * 2
    first, second = driver.stored
    assert first == second


def test_a_get_done_again_reads_the_same() -> None:
    """(RFC 7252, 5.1)"""
    driver = Driver(last=LAST)
    first, second = (driver.get("t/a", mid=mid) for mid in (1, 2))
    assert (first.code, first.payload, first.options) == (second.code, second.payload, second.options)
    assert driver.stored == []


@pytest.mark.parametrize("value", [2, 255, 0xFFFFFF])
def test_another_value_of_observe(value: int) -> None:
    driver = Driver(last=LAST)
    answer = driver.get("t/a", options=observe(value))
    assert dotted(answer.code) == "2.05"
    assert OBSERVE not in options_of(answer)
    assert driver.subscriptions == {}


def test_an_error_that_ends_an_observation() -> None:
    driver = Driver(last=LAST)
    driver.get("t/a", options=observe(0))
    driver.now_ms += 60_000
    (call,) = driver.endpoint.tick(now_ms=driver.now_ms)
    denied = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    driver.complete(list(driver.endpoint.completed(call.token, denied, now_ms=driver.now_ms)))
    (packet,) = driver.sent()
    assert dotted(packet.code) == "4.03"
    assert OBSERVE not in options_of(packet)


def test_a_notification_says_until_when_the_next_one_comes() -> None:
    """(RFC 7641, 4.3.1)"""
    driver = Driver({"observe_confirm_ms": 100_000, "observe_check_ms": 10_000}, last=LAST)
    driver.get("t/a", options=observe(0))
    (packet,) = driver.deliver(Message(address="a", body=b"2", id="2", content_type="text/plain"))
    assert read_uint(options_of(packet)[MAX_AGE]) == 100 + 10 + 93


def test_an_observer_is_asked_to_acknowledge_within_a_day_however_it_is_configured() -> None:
    """(RFC 7641, 4.5)"""
    longest = {"observe_confirm_ms": 86_000_000, "observe_check_ms": 400_000}
    for name, ms in longest.items():
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({name: ms + 1}, CoapOptions)
    driver = Driver(longest, last=LAST)
    driver.get("t/a", options=observe(0))
    sent: list[Packet] = []
    for _ in range(86_400_000 // 400_000):
        sent += driver.tick(400_000)
    assert {(packet.type, packet.payload) for packet in sent} == {(CON, b"1")}


@pytest.mark.parametrize(("option", "code"), [(BLOCK1, 2), (BLOCK2, GET)])
def test_a_block_option_given_twice(option: int, code: int) -> None:
    """(RFC 7959, 2.1)"""
    driver = Driver(last=LARGE)
    given = (option, Block(0, False, 1).encode())
    assert dotted(driver.ask("t/a", code, options=(given, given), payload=b"x").code) == "4.02"
    assert driver.stored == []


def test_blocks_of_different_formats_are_not_put_together() -> None:
    """(RFC 7959, 2.3)"""
    driver = Driver()
    answers = [
        driver.ask(
            "t/a", mid=number, content_format=kind, payload=body, options=((BLOCK1, Block(number, more, 0).encode()),)
        )
        for number, more, kind, body in ((0, True, 0, bytes(16)), (1, False, 50, b"{}"))
    ]
    assert [dotted(answer.code) for answer in answers] == ["2.31", "4.08"]
    assert driver.stored == []


@pytest.mark.parametrize("option", [BLOCK1, BLOCK2])
def test_the_reserved_block_size(option: int) -> None:
    driver = Driver(last=LAST)
    for code in (GET, 2):
        assert dotted(driver.ask("t/a", code, mid=code, options=((option, b"\x07"),)).code) == "4.00"
    assert driver.stored == []


def test_more_in_a_request_for_a_block() -> None:
    bodies = []
    for more in (False, True):
        driver = Driver(last=LARGE)
        answer = driver.get("t/a", options=((BLOCK2, Block(1, more, 1).encode()),))
        bodies.append(answer.payload)
    assert bodies == [LARGE.body[32:64]] * 2


def test_a_notification_has_the_block_size_of_its_registration() -> None:
    """(RFC 7959, 2.6)"""
    driver = Driver(last=LARGE)
    answer = driver.get("t/a", options=((OBSERVE, b""), (BLOCK2, Block(0, False, 1).encode())))
    (packet,) = driver.deliver(Message(address="a", body=bytes(range(90)), id="2"))
    for one, body in ((answer, LARGE.body), (packet, bytes(range(90)))):
        assert options_of(one)[BLOCK2] == Block(0, True, 1).encode()
        assert one.payload == body[:32]


def test_every_block_has_the_etag() -> None:
    driver = Driver(last=LARGE)
    etags = set()
    for number in range(4):
        answer = driver.get("t/a", mid=number, options=((BLOCK2, Block(number, False, 1).encode()),))
        assert answer.code == CONTENT
        etags.add(options_of(answer)[4])
    assert len(etags) == 1


def test_the_size_of_a_body() -> None:
    driver = Driver(last=LARGE)
    answer = driver.get("t/a", options=((BLOCK2, Block(0, False, 1).encode()), (SIZE2, b"")))
    assert options_of(answer)[SIZE2] == encode_uint(len(LARGE.body))


def test_another_csm() -> None:
    client = StreamClient()
    for size in (128, 4_096):
        assert client.send(signal(CSM, (MAX_MESSAGE_SIZE, encode_uint(size)))) == []
    (answer,) = client.send(signal(CSM, (MAX_MESSAGE_SIZE, encode_uint(1))))
    assert answer.code == ABORT


def test_the_token_of_a_pong() -> None:
    client = StreamClient()
    for token in (b"", b"1", b"12345678"):
        (answer,) = client.send(signal(PING, token=token))
        assert (answer.code, answer.token) == (PONG, token)


def test_a_response_goes_to_the_connection_of_its_request() -> None:
    """(RFC 8323, 3.3)"""
    context = StreamsContext(CoapOptions())
    clients = [CoapStreamPeer(context=context) for _ in range(2)]
    for client, body in zip(clients, "xy", strict=True):
        client.holds = True
        client.last = Message(address="a", body=body.encode(), id=body)
        assert client.send(stream_request("t/a", GET)) == []
    assert [[frame.payload for frame in client.answer()] for client in reversed(clients)] == [[b"y"], [b"x"]]


def test_a_ping_is_not_held_up_by_requests() -> None:
    """(RFC 8323, 5.4)"""
    client = CoapStreamPeer()
    client.holds = True
    assert [frame.code for frame in client.send(stream_request("t/a"), signal(PING))] == [PONG]
    assert [frame.code for frame in client.answer()] == [CREATED]


@pytest.mark.parametrize("code", [CSM, PING, PONG, RELEASE])
def test_elective_options_of_signals(code: int) -> None:
    """(RFC 8323, 5.2 and 5.4)"""
    client = CoapStreamPeer()
    sent = client.send(signal(code, (0x40, b"x"), (0xFFFE, b"")))
    assert ABORT not in [frame.code for frame in sent]
    assert (client.closed is None) is (code != RELEASE)
    if client.closed is None:
        assert [frame.code for frame in client.send(stream_request("t/a"))] == [CREATED]


def signal(code: int, *options: tuple[int, bytes], token: bytes = b"") -> bytes:
    return encode_frame(code, token, encode_options(options))


class Frame(NamedTuple):
    """The code and the token of a frame."""

    code: int
    token: bytes


class StreamClient:
    """A connection behind its first CSM."""

    def __init__(self) -> None:
        info = ConnectionInfo(peer=("h", 1), local=("h", 2))
        self.connection = CoapConnection(info, StreamsContext(CoapOptions()), random=Random(1))
        self.send(signal(CSM))

    def send(self, data: bytes) -> list[Frame]:
        self.connection.receive(data, now_ms=1_000)
        output, at, found = self.connection.take_output(), 0, []
        while at < len(output):
            head = read_head(output, at)
            assert head is not None
            found.append(Frame(head.code, output[at + head.token_at : at + head.options_at]))
            at += head.end
        return found
