"""Echo, Request-Tag (RFC 9175) and Hop-Limit (RFC 8768)."""

from random import Random
from typing import Any

import pytest

from adapters.coap.codec.registry import (
    ACK,
    BLOCK1,
    BLOCK2,
    DELETE,
    ECHO,
    GET,
    HOP_LIMIT,
    NON,
    OBSERVE,
    PUT,
    REQUEST_TAG,
)
from adapters.coap.codec.wire import Packet, encode
from adapters.coap.exchanges.echo import FREE_BYTES, REACHED_MS, EchoVerifier
from adapters.coap.messages.request import Block
from adapters.coap.messages.settings import CoapOptions
from gateway.port.adapter import DONE, Call, Outcome
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, PEER, Driver, dotted, is_ack, options_of, request

LARGE = Message(address="a", body=bytes(600), id="1")


def asked(driver: Driver, path: str = "t/a", **parts: Any) -> bytes:
    """Sends a request, and returns the Echo option of its answer, which must be 4.01."""
    answer = driver.ask(path, **parts)
    assert dotted(answer.code) == "4.01"
    assert answer.payload == b""
    return options_of(answer)[ECHO]


def echoed(echo: bytes) -> dict[str, Any]:
    return {"options": ((ECHO, echo),)}


# ---- freshness


@pytest.mark.parametrize("code", [2, PUT, DELETE])
def test_a_request_that_stores_must_be_fresh_where_that_is_configured(code: int) -> None:
    driver = Driver({"echo_fresh_s": 10}, last=LARGE)
    echo = asked(driver, code=code)
    assert driver.stored == []
    answer = driver.ask("t/a", code, mid=2, **echoed(echo))
    assert answer.code >> 5 == 2
    assert len(driver.stored) == 1


def test_an_echo_serves_until_it_is_too_old() -> None:
    driver = Driver({"echo_fresh_s": 10})
    echo = asked(driver)
    for mid, (after_ms, code) in enumerate(((0, "2.01"), (10_000, "2.01"), (200, "4.01")), 2):
        driver.now_ms += after_ms
        assert dotted(driver.ask("t/a", mid=mid, **echoed(echo)).code) == code
    assert len(driver.stored) == 2


def test_an_echo_is_the_endpoints_own_and_cannot_be_made_up() -> None:
    driver = Driver({"echo_fresh_s": 10})
    echo = asked(driver)
    for mid, wrong in enumerate((b"\x01", echo[:-1], echo[:-1] + bytes((echo[-1] ^ 1,)), echo + b"\0"), 2):
        assert asked(driver, mid=mid, **echoed(wrong))
    (answer,) = driver.exchange(request("t/a", mid=9, **echoed(echo)), peer=OTHER)
    assert dotted(answer.code) == "4.01"
    assert driver.stored == []


def test_a_lasting_echo_is_not_taken_for_a_known_list_of_options() -> None:
    """Options are looked up as bytes; those with an Echo, or where one is needed, are read each time."""
    driver = Driver({"echo_fresh_s": 10})
    echo = asked(driver)
    driver.ask("t/a", mid=2, **echoed(echo))
    assert driver.endpoint.plans.known == {}
    driver.now_ms += 60_000
    assert asked(driver, mid=3, **echoed(echo))


def test_each_block_of_a_body_must_be_fresh() -> None:
    driver = Driver({"echo_fresh_s": 10})
    first = (BLOCK1, Block(0, True, 0).encode())
    last = (BLOCK1, Block(1, False, 0).encode())
    echo = asked(driver, options=(first,), payload=bytes(16))
    parts = {"payload": bytes(16)}
    assert dotted(driver.ask("t/a", mid=2, options=(first, (ECHO, echo)), **parts).code) == "2.31"
    assert asked(driver, mid=3, options=(last,), **parts)
    driver.now_ms += 100
    newer = asked(driver, mid=4, options=(last,), **parts)
    assert newer != echo
    assert dotted(driver.ask("t/a", mid=5, options=(last, (ECHO, newer)), **parts).code) == "2.01"
    assert driver.stored[0].body == bytes(32)


def test_nothing_is_asked_for_unless_it_is_configured() -> None:
    driver = Driver(last=LARGE)
    assert dotted(driver.ask("t/a", **echoed(b"whatever")).code) == "2.01"
    assert dotted(driver.get("t/a", mid=2).code) == "2.05"


# ---- amplification


def test_an_echo_with_a_request_that_has_to_be_fresh_verifies_the_address() -> None:
    driver = Driver({"echo_fresh_s": 10, "amplification_max": 3}, last=LARGE)
    echo = asked(driver)
    assert dotted(driver.ask("t/a", mid=2, **echoed(echo)).code) == "2.01"
    assert dotted(driver.get("t/a", mid=3).code) == "2.05"


def test_a_large_response_waits_until_the_address_is_verified() -> None:
    driver = Driver({"amplification_max": 3}, last=LARGE)
    echo = asked(driver, code=GET)
    answer = driver.get("t/a", mid=2, **echoed(echo))
    assert (dotted(answer.code), answer.payload) == ("2.05", LARGE.body)
    assert dotted(driver.get("t/a", mid=3).code) == "2.05", "an endpoint is verified once"
    (other,) = driver.exchange(request("t/a", GET, mid=4), peer=OTHER)
    assert dotted(other.code) == "4.01"


def test_a_verified_address_is_asked_again_after_a_time() -> None:
    driver = Driver({"amplification_max": 3}, last=LARGE)
    echo = asked(driver, code=GET)
    driver.get("t/a", mid=2, **echoed(echo))
    driver.now_ms += REACHED_MS
    assert asked(driver, code=GET, mid=3)
    assert asked(driver, code=GET, mid=4, **echoed(b"made up"))


def test_a_small_response_and_one_in_proportion_are_sent_to_anybody() -> None:
    driver = Driver({"amplification_max": 3}, last=Message(address="a", body=bytes(60), id="1"))
    assert dotted(driver.get("t/a").code) == "2.05"
    driver.last = LARGE
    long = ("a=" + "x" * 200, "b=" + "y" * 100)
    assert dotted(driver.get("t/a", mid=2, query=long).code) == "2.05"


def test_no_error_is_larger_than_what_is_sent_to_anybody() -> None:
    driver = Driver({"amplification_max": 3})
    for mid, path in enumerate(("t/a", "t/" + "a" * 250, "t/.."), 2):
        (answer,) = driver.exchange(request(path, GET, mid=mid, token=bytes(8)))
        assert len(encode(answer)) <= FREE_BYTES + 8


def test_an_echo_is_never_asked_for_in_a_message_that_is_sent_again() -> None:
    """RFC 9175, 2.4: piggybacked or Non-confirmable, never as a separate Confirmable response."""
    driver = Driver({"amplification_max": 3}, last=LARGE)
    (call,) = driver.receive(request("t/a", GET))
    assert isinstance(call, Call)
    (ack,) = driver.tick(1_000)
    assert (ack.type, ack.code) == (ACK, 0)
    driver.endpoint.completed(call.token, Outcome(value=LARGE), now_ms=driver.now_ms)
    (answer,) = driver.sent()
    assert (answer.type, dotted(answer.code)) == (NON, "4.01")
    assert driver.tick(60_000) == []


def test_an_unverified_endpoint_cannot_observe() -> None:
    driver = Driver({"amplification_max": 3}, last=Message(address="a", body=b"1", id="1"))
    echo = asked(driver, code=GET, options=((OBSERVE, b""),))
    assert driver.subscribed() == []
    answer = driver.get("t/a", mid=2, options=((OBSERVE, b""), (ECHO, echo)))
    assert OBSERVE in options_of(answer)
    assert driver.subscribed() == ["a"]


def test_verified_endpoints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.coap.exchanges.echo.REACHED_COUNT_MAX", 2)
    verifier = EchoVerifier(CoapOptions(amplification_max=3), random=Random(1), reliable=False)
    peers = [("h", n) for n in range(3)]
    for peer in peers:
        assert verifier.room(peer, verifier.value(peer, 0), 10, 0) is None
    assert [verifier.room(peer, b"", 10, 0) for peer in peers] == [FREE_BYTES, None, None]


def test_over_tcp_the_address_is_verified_by_the_transport() -> None:
    verifier = EchoVerifier(CoapOptions(amplification_max=3), random=Random(1), reliable=True)
    assert verifier.room(PEER, b"", 10, 0) is None


# ---- Request-Tag


def blocks(tag: tuple[bytes, ...], number: int, *, more: bool) -> dict[str, Any]:
    block = Block(number, more, 0)
    return {"options": ((BLOCK1, block.encode()), *[(REQUEST_TAG, one) for one in tag])}


def test_blocks_of_different_request_tags_are_never_put_together() -> None:
    """RFC 9175, 3.3: an absent tag, an empty one, and a list of two are all different."""
    driver = Driver()
    tags = ((), (b"",), (b"1",), (b"2",), (b"1", b"2"))
    for mid, tag in enumerate(tags):
        answer = driver.ask("t/a", mid=mid, payload=bytes([mid]) * 16, **blocks(tag, 0, more=True))
        assert dotted(answer.code) == "2.31"
    for mid, tag in enumerate(tags):
        answer = driver.ask("t/a", mid=16 + mid, payload=b"x", **blocks(tag, 1, more=False))
        assert dotted(answer.code) == "2.01"
        assert REQUEST_TAG not in options_of(answer)
    assert [message.body for message in driver.stored] == [bytes([mid]) * 16 + b"x" for mid in range(len(tags))]


def test_a_block_of_an_unknown_request_tag_is_incomplete() -> None:
    driver = Driver()
    driver.ask("t/a", payload=bytes(16), **blocks((b"1",), 0, more=True))
    answer = driver.ask("t/a", mid=2, payload=b"x", **blocks((b"2",), 1, more=False))
    assert dotted(answer.code) == "4.08"
    assert dotted(driver.ask("t/a", mid=3, payload=b"x", **blocks((b"1",), 1, more=False)).code) == "2.01"


def test_an_echo_does_not_tell_transfers_apart() -> None:
    """RFC 7252, 5.4.6: an option that is NoCacheKey is no part of what is asked for."""
    driver = Driver()
    first, last = (BLOCK1, Block(0, True, 0).encode()), (BLOCK1, Block(1, False, 0).encode())
    driver.ask("t/a", options=(first, (ECHO, b"1")), payload=bytes(16))
    assert dotted(driver.ask("t/a", mid=2, options=(last, (ECHO, b"2")), payload=b"x").code) == "2.01"


def test_a_request_tag_in_a_request_without_blocks_is_passed_over() -> None:
    driver = Driver(last=LARGE)
    assert dotted(driver.ask("t/a", options=((REQUEST_TAG, b"1"),)).code) == "2.01"
    assert dotted(driver.get("t/a", mid=2, options=((REQUEST_TAG, b"123456789"),)).code) == "2.05", "elective"


def test_a_request_tag_tells_transfers_of_a_response_apart_too() -> None:
    driver = Driver({"block_size": 16}, last=Message(address="a", body=bytes(range(32)), id="1"))
    driver.get("t/a", options=((REQUEST_TAG, b"1"),))
    driver.last = Message(address="a", body=bytes(range(32, 64)), id="2")
    driver.get("t/a", mid=2, options=((REQUEST_TAG, b"2"),))
    second = (BLOCK2, Block(1, False, 0).encode())
    bodies = [
        driver.get("t/a", mid=3 + n, options=(second, (REQUEST_TAG, tag))).payload for n, tag in enumerate((b"1", b"2"))
    ]
    assert bodies == [bytes(range(16, 32)), bytes(range(48, 64))]


# ---- Hop-Limit


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"\x01", "2.01"),
        (b"\xff", "2.01"),
        (b"\x00", "4.00"),
        (b"", "4.00"),
        (b"\x01\x00", "4.00"),
        (b"\0\x10", "2.01"),
    ],
)
def test_a_hop_limit_out_of_its_range_is_refused(value: bytes, code: str) -> None:
    driver = Driver(last=LARGE)
    assert is_ack(driver.ask("t/a", options=((HOP_LIMIT, value),)), code)
    assert dotted(driver.get("t/a", mid=2, options=((HOP_LIMIT, value),)).code) == code.replace("2.01", "2.05")
    assert len(driver.stored) == (code == "2.01")


def test_the_first_of_several_hop_limits_counts() -> None:
    """An option that may not be repeated and is elective: the others are passed over (RFC 7252, 5.4.5)."""
    driver = Driver()
    (answer,) = driver.exchange(request("t/a", options=((HOP_LIMIT, b"\x01"), (HOP_LIMIT, b"\x00"))))
    assert dotted(answer.code) == "2.01"


def test_a_request_that_is_stored_slowly_and_repeated_needs_one_echo() -> None:
    driver = Driver({"echo_fresh_s": 10})
    echo = asked(driver)
    again = request("t/a", mid=2, **echoed(echo))
    effects = driver.receive(again)
    assert driver.receive(again) == []
    driver.complete(effects, DONE)
    assert [packet.type for packet in driver.sent()] == [ACK]
    driver.now_ms += 60_000
    driver.complete(driver.receive(again))
    assert driver.sent() == [Packet(type=ACK, code=0x41, mid=2, token=b"tk")]
    assert len(driver.stored) == 1
