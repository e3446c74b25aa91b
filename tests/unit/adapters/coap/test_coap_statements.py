"""Statements of RFC 7641 about a server, as a table, and tests of statements of other RFCs.

Each names the test that holds it, and one whose test is gone fails here. Those of RFC 7252, 7959 and 8323 are in the
tables of `tests/conformance/`.
"""

import re
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from adapters.coap.codec.registry import BLOCK1, BLOCK2, CONTENT, CREATED, GET, OBSERVE, SIZE2
from adapters.coap.codec.wire import encode_options, encode_uint
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

STATEMENTS = {
    "7641 3.1: a registration is answered with the representation, the token and Observe": (
        "observe: a_registration_is_answered_with_the_last_value_and_a_number"
    ),
    "7641 3.2: each notification has the token of the registration": (
        "observe: each_message_is_a_notification_with_the_token_and_a_higher_number"
    ),
    "7641 3.3.1: Max-Age says until when a notification is fresh": (
        "observe: a_notification_lives_no_longer_than_its_message"
    ),
    "7641 3.5: a Confirmable notification may be acknowledged, and others follow": (
        "observe: the_newest_message_waits_for_an_acknowledgement"
    ),
    "7641 3.6: Observe 1 with the token ends an observation": "observe: observe_1_ends_the_observation",
    "7641 3.6: a Reset ends an observation": "observe: a_reset_of_a_confirmable_notification_ends_the_observation",
    "7641 4.1: an entry is replaced by a registration with its endpoint and token": (
        "observe: a_new_registration_with_the_same_token_replaces_the_observation"
    ),
    "7641 4.1: a server that cannot add an entry answers without Observe": (
        "observe: observers_beyond_the_limit_of_all_are_only_answered"
    ),
    "7641 4.2: an error response ends the observation": "observe: a_deletion_ends_the_observation",
    "7641 4.2: notifications keep the Content-Format of the first response": (
        "observe: another_content_format_ends_the_observation"
    ),
    "7641 4.3: an observer ends with the last value": "property: an_observer_ends_with_the_last_value",
    "7641 4.4: sequence numbers rise, by at most half their range in 128 s": (
        "observe: a_number_follows_the_clock_and_never_falls"
    ),
    "7641 4.5: a time-out of a Confirmable notification ends the observation": (
        "observe: an_observer_that_does_not_acknowledge_is_forgotten"
    ),
    "7641 4.5: a client is asked to acknowledge now and then": "observe: every_nth_notification_is_confirmable",
    "7641 4.5.1: newer notifications wait for one in flight": "observe: waiting_messages_take_the_room_of_one",
    "7641 4.5.1: one Confirmable message to a client is in flight": (
        "nstart: commands_of_several_addresses_come_one_after_the_other"
    ),
    "7641 4.5.2: a newer state takes the place of one that is sent again": (
        "observe: the_last_of_a_confirmable_notification_and_an_error_is_the_error"
    ),
    "7641 2: Observe is passed over where its value is none that is known": "statements: another_value_of_observe",
    "7641 4.2: an error notification has no Observe": "statements: an_error_that_ends_an_observation",
}

FILES = {
    "observe": "test_coap_observe.py",
    "nstart": "test_coap_observe_nstart.py",
    "statements": "test_coap_statements.py",
    "property": "../../../property/adapters/test_coap_observe_loss.py",
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_each_statement_has_its_test(statement: str) -> None:
    where, name = STATEMENTS[statement].split(": ")
    text = (Path(__file__).parent / FILES[where]).read_text("utf-8")
    assert re.search(rf"^(async )?def test_{name}\(", text, re.MULTILINE)


def observe(value: int) -> tuple[tuple[int, bytes], ...]:
    return ((OBSERVE, encode_uint(value)),)


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
