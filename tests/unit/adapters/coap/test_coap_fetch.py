"""FETCH (RFC 8132) of a filter, and its observation, driven by datagrams and a clock."""

import json
from base64 import b64decode
from typing import Any

import pytest

from adapters.coap.codec.registry import (
    ACCEPT,
    ACK,
    BLOCK1,
    BLOCK2,
    CON,
    CONTENT_FORMAT,
    ECHO,
    FETCH,
    NO_RESPONSE,
    NON,
    OBSERVE,
)
from adapters.coap.codec.wire import Packet, encode, encode_uint, read_uint
from adapters.coap.messages.blocks import READ_MS
from adapters.coap.messages.request import Block
from adapters.coap.observe.observation import WAITING_COUNT_MAX
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Call, Outcome
from gateway.port.reads import LastValues, LastValuesPage
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, is_ack, options_of, request

REGISTER = (OBSERVE, b"")
BATCH = 65_012
CHECK_MS = 60_000


def value(address: str, text: str, **fields: Any) -> Message:
    return Message(address=address, body=text.encode(), id=f"id-{text}", content_type="text/plain", **fields)


def page(*messages: Message, after: str | None = None) -> LastValuesPage:
    return LastValuesPage(messages=messages, after=after)


def fetch(driver: Driver, pattern: str = "a/+", **parts: Any) -> Packet:
    return driver.ask(parts.pop("path", "t"), FETCH, payload=pattern.encode(), **parts)


def told(packet: Packet) -> list[tuple[str, str]]:
    return [(event["subject"], b64decode(event["data_base64"]).decode()) for event in json.loads(packet.payload)]


def test_the_last_values_of_a_filter_are_a_batch_of_events() -> None:
    driver = Driver(page=page(value("a/1", "x"), value("a/2", "y"), value("a/3", "old", expires_at_ms=1)))
    answer = fetch(driver)
    assert is_ack(answer, "2.05")
    assert read_uint(options_of(answer)[CONTENT_FORMAT]) == BATCH
    assert told(answer) == [("a/1", "x"), ("a/2", "y")]
    assert driver.calls == [LastValues(pattern="a/+", limit=1_000)]


def test_nothing_is_an_empty_batch() -> None:
    assert json.loads(fetch(Driver()).payload) == []


def test_pages_are_read_until_there_are_enough() -> None:
    driver = Driver()
    pages = [page(value("a/1", "x"), after="a/1"), page(after="a/5"), page(value("a/6", "y"), after="a/6")]
    effects = driver.receive(request("t", FETCH, payload=b"a/+", query=("limit=2", "after=a/0")))
    asked = []
    for one in pages:
        (call,) = effects
        assert isinstance(call, Call)
        asked.append((call.request.limit, call.request.after))
        effects = list(driver.endpoint.completed(call.token, Outcome(value=one), now_ms=driver.now_ms))
    assert effects == []
    assert asked == [(2, "a/0"), (1, "a/1"), (1, "a/5")]
    (answer,) = driver.sent()
    assert told(answer) == [("a/1", "x"), ("a/6", "y")]


@pytest.mark.parametrize("later", ["a/+", ""])
def test_a_large_batch_is_read_in_blocks_as_it_was(later: str) -> None:
    driver = Driver(page=page(*[value(f"a/{n}", "x" * 200) for n in range(20)]))
    body = b""
    for number in range(100):
        part = fetch(
            driver, later if number else "a/+", mid=number + 1, options=((BLOCK2, Block(number, False, 6).encode()),)
        )
        body += part.payload
        if not Block.decode(options_of(part)[BLOCK2], "").more:
            break
    assert len(json.loads(body)) == 20
    last = (BLOCK2, Block(number, False, 6).encode())
    assert fetch(driver, later, mid=number + 1, options=(last,)).payload == part.payload  # sent again
    assert len(driver.calls) == 1


def test_the_filter_of_a_batch_that_is_held_counts() -> None:
    """It is held with the batch, and may be as long."""
    values = page(*[value(f"a/{n}", "x" * 200) for n in range(6)])
    for filter_, code in (("#", "2.05"), ("a" * 400, "4.08")):
        driver = Driver({"block_bytes_max": 4_200}, page=values)
        answer = fetch(driver, filter_)
        assert dotted(answer.code) == "2.05"
        again = fetch(driver, "", mid=2, options=((BLOCK2, Block(1, False, 6).encode()),))
        assert dotted(again.code) == code


FILTER = "telemetry/+/device-with-a-long-name/#"


def part(driver: Driver, number: int, **parts: Any) -> list[Packet]:
    """Sends a block of a filter, in 16 bytes; returns what is sent back."""
    payload = FILTER[number * 16 : number * 16 + 16].encode()
    block = (BLOCK1, Block(number, number < 2, 0).encode())
    options = (block, *parts.pop("options", ()))
    return driver.exchange(request("t", FETCH, mid=parts.pop("mid", number), payload=payload, options=options, **parts))


def test_a_filter_comes_in_blocks() -> None:
    driver = Driver(page=page(*[value(f"a/{n}", "x" * 200) for n in range(20)]))
    answers = [answer for number in range(3) for answer in part(driver, number)]
    assert [dotted(answer.code) for answer in answers] == ["2.31", "2.31", "2.05"]
    assert [Block.decode(options_of(answer)[BLOCK1], "") for answer in answers] == [
        Block(0, True, 0),
        Block(1, True, 0),
        Block(2, False, 0),
    ]
    assert driver.calls == [LastValues(pattern=FILTER, limit=1_000)]
    assert Block.decode(options_of(answers[2])[BLOCK2], "") == Block(0, True, 6)
    following = fetch(driver, "", mid=9, options=((BLOCK2, Block(1, False, 6).encode()),))
    assert len(following.payload) == 1024
    assert BLOCK1 not in options_of(following)
    assert len(driver.calls) == 1


@pytest.mark.parametrize("max_age_s", [0, 5])
def test_blocks_of_a_filter_that_are_repeated(max_age_s: int) -> None:
    """A response that tells how long it may be cached is not kept: the filter is."""
    driver = Driver({"max_age_s": max_age_s}, page=page(value("a/1", "x")))
    answers = [part(driver, number) for number in (0, 0, 1, 1, 2, 2)]
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert answers[4] == answers[5]
    (again,) = part(driver, 2, mid=7)
    assert is_ack(again, "2.05", mid=7)
    assert {call.pattern for call in driver.calls} == {FILTER}
    driver.tick(READ_MS)
    (late,) = part(driver, 2, mid=8)
    assert is_ack(late, "4.08", mid=8)


def test_a_block_of_a_filter_is_missing() -> None:
    driver = Driver()
    part(driver, 0)
    (answer,) = part(driver, 2)
    assert is_ack(answer, "4.08", mid=2)
    assert driver.calls == []


def test_an_empty_block_behind_a_gap_does_not_end_a_filter() -> None:
    """The part that is there would match something else."""
    driver = Driver()
    part(driver, 0)
    (answer,) = driver.exchange(request("t", FETCH, mid=2, options=((BLOCK1, Block(2, False, 0).encode()),)))
    assert is_ack(answer, "4.08", mid=2)
    assert driver.calls == []


def test_a_filter_in_blocks_is_observed_once_it_is_whole() -> None:
    driver = Driver(page=page(value("a/1", "x")))
    for number in range(2):
        part(driver, number, options=(REGISTER,))
        assert driver.subscribed() == []
    (answer,) = part(driver, 2, options=(REGISTER,))
    assert OBSERVE in options_of(answer)
    assert driver.subscribed() == [FILTER]
    assert part(driver, 2, options=(REGISTER,)) == [answer]
    (notification,) = driver.deliver(value("telemetry/1/device-with-a-long-name/t", "y"))
    assert BLOCK1 not in options_of(notification)


def test_no_responses_to_a_filter_in_blocks_but_those_that_ask_for_more() -> None:
    driver = Driver()
    answers = [part(driver, number, options=((NO_RESPONSE, b"\x02"),)) for number in range(3)]
    assert [[dotted(answer.code) for answer in one] for one in answers] == [["2.31"], ["2.31"], ["0.00"]]


def test_an_endpoint_is_verified_before_its_filter_is_held() -> None:
    driver = Driver({"amplification_max": 3}, page=page(value("a/1", "x" * 200)))
    (asked,) = part(driver, 0)
    assert is_ack(asked, "4.01", mid=0)
    echo = (ECHO, options_of(asked)[ECHO])
    part(driver, 0, mid=10, options=(echo,))
    part(driver, 1)
    (answer,) = part(driver, 2)
    assert is_ack(answer, "2.05", mid=2)


def test_blocks_of_a_filter_are_fresh_where_bodies_have_to_be() -> None:
    """Else those who send from others' addresses would leave no room for bodies that are."""
    driver = Driver({"echo_fresh_s": 10})
    (asked,) = part(driver, 0)
    assert is_ack(asked, "4.01", mid=0)
    assert len(driver.endpoint.transfers.uploads) == 0
    echo = (ECHO, options_of(asked)[ECHO])
    answers = [dotted(part(driver, number, mid=10 + number, options=(echo,))[0].code) for number in range(3)]
    assert answers == ["2.31", "2.31", "2.05"]
    assert dotted(fetch(driver, mid=20).code) == "2.05", "in one message it takes no room"


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("4.05", {"path": "t/a"}),
        ("4.05", {"path": ".well-known/core"}),
        ("4.00", {"pattern": "a/#/b"}),
        ("4.00", {"pattern": ""}),
        ("4.00", {"query": ("limit=0",)}),
        ("4.00", {"query": ("limit=1001",)}),
        ("4.00", {"query": ("other=1",)}),
        ("4.06", {"options": ((ACCEPT, encode_uint(50)),)}),
        ("4.00", {"options": ((BLOCK1, Block(0, True, 6).encode()),)}),  # with 3 bytes
        ("4.15", {"content_format": 50}),
    ],
)
def test_what_is_wrong_is_said(code: str, parts: dict[str, Any]) -> None:
    driver = Driver()
    assert is_ack(fetch(driver, **parts), code)
    assert driver.calls == []


def test_blocks_of_another_filter_are_not_given() -> None:
    driver = Driver(page=page(*[value(f"a/{n}", "x" * 200) for n in range(20)]))
    second = (BLOCK2, Block(1, False, 6).encode())
    assert is_ack(fetch(driver, "", options=(second,)), "4.08")
    fetch(driver, mid=2)
    fetch(driver, "b/+", mid=3, options=(second,))
    assert [call.pattern for call in driver.calls] == ["a/+", "b/+"]


def test_a_filter_that_is_not_utf_8() -> None:
    assert is_ack(Driver().ask("t", FETCH, payload=b"\xff"), "4.00")


def test_a_refusal_is_told() -> None:
    refusal = Outcome(error=Refusal(Cause.FORBIDDEN, "not yours"))
    assert is_ack(fetch(Driver(), outcome=refusal), "4.03")


# ---- observed


def watching(**settings: Any) -> Driver:
    driver = Driver(settings, page=page(value("a/1", "0")))
    assert OBSERVE in options_of(fetch(driver, options=(REGISTER,)))
    assert driver.subscribed() == ["a/+"]
    return driver


def settle(driver: Driver, packet: Packet) -> list[Packet]:
    return driver.exchange(encode(Packet(type=ACK, code=0, mid=packet.mid)))


def test_each_message_of_any_address_is_a_notification() -> None:
    driver = watching()
    sent = driver.deliver(value("a/1", "1"), value("a/2", "2"))
    assert [(packet.type, told(packet)) for packet in sent] == [(NON, [("a/1", "1")]), (NON, [("a/2", "2")])]


def test_the_newest_of_each_address_wait_for_an_acknowledgement() -> None:
    driver = watching(observe_confirm_every=1)
    (first,) = driver.deliver(*[value(f"a/{n}", f"{n}{turn}") for turn in "xy" for n in (1, 2, 3)])
    assert (first.type, told(first)) == (CON, [("a/1", "1x")])
    (rest,) = settle(driver, first)
    assert (rest.type, told(rest)) == (CON, [("a/1", "1y"), ("a/2", "2y"), ("a/3", "3y")])
    assert settle(driver, rest) == []


def test_what_was_not_acknowledged_is_sent_again_until_it_is() -> None:
    driver = watching()
    driver.deliver(value("a/1", "1"), value("a/2", "2"), value("a/1", "3"))
    (again,) = driver.tick(CHECK_MS)
    assert (again.type, sorted(told(again))) == (CON, [("a/1", "3"), ("a/2", "2")])
    assert settle(driver, again) == []
    assert driver.tick(CHECK_MS) == []


def test_a_retransmission_carries_what_is_not_acknowledged_and_what_came_since() -> None:
    driver = watching(observe_confirm_every=1)
    (first,) = driver.deliver(value("a/1", "1"))
    assert driver.deliver(value("a/2", "2"), value("a/2", "2y")) == []
    (second,) = driver.tick(3_000)
    assert (second.type, told(second)) == (CON, [("a/1", "1"), ("a/2", "2y")])
    assert second.mid != first.mid
    assert driver.deliver(value("a/1", "1y")) == []
    (third,) = driver.tick(6_000)
    assert (third.type, told(third)) == (CON, [("a/2", "2y"), ("a/1", "1y")])
    assert settle(driver, third) == []
    assert driver.tick(50_000) == []


def test_a_confirmable_notification_repeats_what_may_have_been_lost_before_it() -> None:
    driver = watching(observe_confirm_every=3)
    assert [one.type for one in driver.deliver(value("a/1", "1"))] == [NON]
    assert [one.type for one in driver.deliver(value("a/2", "2"))] == [NON]
    (asked,) = driver.deliver(value("a/1", "1y"))
    assert (asked.type, told(asked)) == (CON, [("a/2", "2"), ("a/1", "1y")])
    assert settle(driver, asked) == []
    (after,) = driver.deliver(value("a/3", "3"))
    assert (after.type, told(after)) == (NON, [("a/3", "3")])


def test_a_silent_observer_is_asked_whether_it_is_there() -> None:
    driver = watching(observe_confirm_ms=CHECK_MS)
    (asked,) = driver.tick(CHECK_MS)
    assert (asked.type, told(asked)) == (CON, [])


def test_too_many_addresses_end_the_observation() -> None:
    driver = watching(observe_confirm_every=1)
    sent = driver.deliver(*[value(f"a/{n}", str(n)) for n in range(WAITING_COUNT_MAX + 2)])
    assert dotted(sent[-1].code) == "5.03"
    assert OBSERVE not in options_of(sent[-1])
    driver.tick(0)
    assert driver.subscribed() == []


def test_a_right_taken_away_ends_the_observation() -> None:
    driver = watching()
    driver.now_ms += CHECK_MS
    refusal = Outcome(error=Refusal(Cause.FORBIDDEN, "not yours"))
    driver.complete(list(driver.endpoint.tick(now_ms=driver.now_ms)), refusal)
    assert [dotted(packet.code) for packet in driver.sent()] == ["4.03"]
    assert driver.subscribed() == []


def test_a_filter_and_an_address_of_the_same_text_are_two() -> None:
    driver = Driver(last=value("a/b", "0"), page=page(value("a/b", "0")))
    driver.get("t/a/b", options=(REGISTER,))
    fetch(driver, "a/b", mid=2, token=b"other", options=(REGISTER,))
    assert driver.subscribed() == ["a/b", "a/b"]
    (plain,) = driver.deliver(value("a/b", "1"), sub=1)
    (batch,) = driver.deliver(value("a/b", "1"), sub=2)
    assert (plain.payload, told(batch)) == (b"1", [("a/b", "1")])
