"""If-Match and If-None-Match (RFC 7252, 5.10.8), and No-Response (RFC 7967)."""

from typing import Any

import msgspec
import pytest

from adapters.coap.codec.registry import (
    CON,
    DELETE,
    EMPTY,
    ETAG,
    FETCH,
    GET,
    IF_MATCH,
    IF_NONE_MATCH,
    NO_RESPONSE,
    NON,
    POST,
    PUT,
)
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import DONE, Call, Outcome, Publish
from store.api.message import Message
from tests.support.coap.coap_driver import Driver, dotted, is_ack, options_of, request

ABSENT = (IF_NONE_MATCH, b"")
PRESENT = (IF_MATCH, b"")
OTHER_ETAG = (IF_MATCH, b"other")


def with_value(**fields: Any) -> Driver:
    return Driver(last=Message(address="a/b", body=b"1", id="id-1", **fields))


def etag_of(driver: Driver, **parts: Any) -> tuple[int, bytes]:
    return IF_MATCH, options_of(driver.get("t/a/b", mid=900, **parts))[ETAG]


@pytest.mark.parametrize("method", [POST, PUT, DELETE])
def test_if_none_match_holds_where_nothing_is(method: int) -> None:
    driver = Driver()
    assert driver.ask("t/a/b", method, options=(ABSENT,)).code >> 5 == 2
    assert len(driver.stored) == 1


@pytest.mark.parametrize("method", [POST, PUT, DELETE])
@pytest.mark.parametrize("option", [ABSENT, OTHER_ETAG])
def test_a_condition_that_does_not_hold_stores_nothing(method: int, option: tuple[int, bytes]) -> None:
    driver = with_value()
    assert is_ack(driver.ask("t/a/b", method, options=(option,)), "4.12")
    assert driver.stored == []


@pytest.mark.parametrize("option", [PRESENT, OTHER_ETAG])
def test_if_match_fails_where_nothing_is(option: tuple[int, bytes]) -> None:
    driver = Driver()
    assert is_ack(driver.ask("t/a/b", PUT, options=(option,)), "4.12")
    assert driver.stored == []


def test_a_value_whose_time_is_over_is_none() -> None:
    assert is_ack(with_value(expires_at_ms=1).ask("t/a/b", PUT, options=(PRESENT,)), "4.12")


def test_if_match_holds_for_any_of_its_etags_in_whatever_format_they_were_given() -> None:
    driver = with_value()
    for mid, etag in enumerate((PRESENT, etag_of(driver), etag_of(driver, query=("ct=application/cloudevents+json",)))):
        assert is_ack(driver.ask("t/a/b", PUT, mid=mid, options=(OTHER_ETAG, etag)), "2.04", mid)
    assert len(driver.stored) == 3


def test_a_condition_is_checked_again_for_the_same_options() -> None:
    driver = Driver()
    assert is_ack(driver.ask("t/a/b", PUT, options=(ABSENT,)), "2.01")
    driver.last = msgspec.structs.replace(driver.stored[-1], id="id-1")
    assert is_ack(driver.ask("t/a/b", PUT, mid=2, options=(ABSENT,)), "4.12", 2)


def test_of_two_requests_that_create_together_one_does() -> None:
    driver = Driver()
    requests = [request("t/a/b", PUT, mid=mid, options=(ABSENT,)) for mid in (1, 2)]
    assert sorted([dotted(packet.code) for packet in driver.exchange(*requests)]) == ["2.01", "4.12"]
    assert len(driver.stored) == 1


def test_a_request_behind_one_that_is_being_stored_waits_for_it() -> None:
    driver = Driver()
    (asked,) = driver.receive(request("t/a/b", PUT, mid=1, options=(ABSENT,)))
    (publish,) = driver.endpoint.completed(asked.token, Outcome(), now_ms=driver.now_ms)
    assert isinstance(publish, Publish)
    assert driver.receive(request("t/a/b", PUT, mid=2, options=(ABSENT,)), request("t/a/b", POST, mid=3)) == []
    (again,) = driver.endpoint.completed(publish.token, DONE, now_ms=driver.now_ms)
    assert isinstance(again, Call)
    stored = msgspec.structs.replace(publish.messages[0], id="id-1")
    (rest,) = driver.endpoint.completed(again.token, Outcome(value=stored), now_ms=driver.now_ms)
    assert isinstance(rest, Publish)
    assert len(rest.messages) == 1
    assert driver.endpoint.completed(rest.token, DONE, now_ms=driver.now_ms) == ()
    assert [(packet.mid, dotted(packet.code)) for packet in driver.sent()] == [(1, "2.01"), (2, "4.12"), (3, "2.01")]
    driver.last = stored
    assert is_ack(driver.ask("t/a/b", PUT, mid=4), "2.04", 4)


def test_a_request_behind_one_that_is_stored_slowly_is_acknowledged_meanwhile() -> None:
    """(RFC 7252, 5.2.2)"""
    driver = Driver()
    (asked,) = driver.receive(request("t/a/b", PUT, mid=1, options=(ABSENT,)))
    (publish,) = driver.endpoint.completed(asked.token, Outcome(), now_ms=driver.now_ms)
    driver.now_ms += 500
    assert driver.receive(request("t/a/b", mid=2), request("t/a/b", PUT, mid=3, type=NON)) == []
    delay_ms = CoapOptions().ack_delay_ms
    assert [(packet.code, packet.mid) for packet in driver.tick(delay_ms - 500)] == [(EMPTY, 1)]
    assert [(packet.code, packet.mid) for packet in driver.tick(500)] == [(EMPTY, 2)]
    assert driver.tick(delay_ms) == []
    driver.complete([publish])
    assert [(packet.type, dotted(packet.code)) for packet in driver.sent()] == [(CON, "2.01"), (NON, "2.04")]
    assert driver.endpoint.outstanding == 0


def test_a_request_that_joins_a_slow_lookup_is_acknowledged_meanwhile() -> None:
    """(RFC 7252, 5.2.2)"""
    driver = Driver()
    delay_ms = CoapOptions().ack_delay_ms
    asked = driver.receive(request("t/a/b", PUT, mid=1))
    assert [(packet.code, packet.mid) for packet in driver.tick(delay_ms)] == [(EMPTY, 1)]
    assert driver.receive(request("t/a/b", PUT, mid=2)) == []
    assert [(packet.code, packet.mid) for packet in driver.tick(delay_ms)] == [(EMPTY, 2)]
    driver.complete(asked)
    assert driver.endpoint.outstanding == 0


def test_a_request_behind_another_that_is_answered_in_time_is_not_waited_for() -> None:
    driver = Driver()
    driver.exchange(request("t/a/b", PUT, mid=1), request("t/a/b", PUT, mid=2))
    deadline_ms = driver.endpoint.deadline_ms()
    assert deadline_ms is not None
    assert deadline_ms > driver.now_ms + CoapOptions().ack_delay_ms
    assert driver.tick(CoapOptions().ack_delay_ms) == []


def test_no_condition_holds_where_the_gateway_cannot_say() -> None:
    driver = Driver()
    refusal = Outcome(error=Refusal(Cause.FORBIDDEN, "not yours"))
    assert is_ack(driver.ask("t/a/b", PUT, options=(ABSENT,), outcome=refusal), "4.03")
    assert driver.stored == []


def test_a_get_with_a_condition() -> None:
    driver = with_value()
    assert is_ack(driver.get("t/a/b", options=(etag_of(driver),)), "2.05")
    assert is_ack(driver.get("t/a/b", mid=2, options=(OTHER_ETAG,)), "4.12", 2)
    assert is_ack(driver.get("t/a/b", mid=3, options=(ABSENT,)), "4.12", 3)
    driver.last = None
    assert is_ack(driver.get("t/a/b", mid=4, options=(PRESENT,)), "4.12", 4)
    assert is_ack(driver.get("t/a/b", mid=5, options=(ABSENT,)), "4.04", 5)


# ---- No-Response


@pytest.mark.parametrize("method", [POST, PUT, DELETE])
def test_a_response_that_is_not_wanted_is_an_empty_acknowledgement(method: int) -> None:
    driver = Driver()
    options = ((NO_RESPONSE, b"\x02"),)
    answer = driver.ask("t/a/b", method, options=options)
    assert (answer.code, answer.mid, answer.token) == (EMPTY, 1, b"")
    assert driver.exchange(request("t/a/b", method, options=options)) == [answer]
    assert len(driver.stored) == 1
    assert driver.exchange(request("t/a/b", method, mid=2, type=NON, options=options)) == []
    assert len(driver.stored) == 2


@pytest.mark.parametrize(("wanted", "silence"), [("", b""), ("4.03", b"\x02"), ("4.03", b"\x10"), (None, b"\x1a")])
def test_only_the_classes_that_are_not_wanted_are_left_out(wanted: str | None, silence: bytes) -> None:
    driver = Driver()
    refusal = Outcome(error=Refusal(Cause.FORBIDDEN, "not yours"))
    answer = driver.ask("t/a/b", outcome=refusal, options=((NO_RESPONSE, silence),))
    assert answer.code == EMPTY if wanted is None else dotted(answer.code) == (wanted or "4.03")


@pytest.mark.parametrize(
    ("path", "silence", "code"),
    [
        ("t/a/b", 0x02, ""),
        ("t/a/b", 0x18, "2.05"),
        ("t/a/b", 0, "2.05"),
        (".well-known/x", 0x08, ""),
        (".well-known/x", 0x12, "4.04"),
    ],
)
def test_a_response_to_a_get_is_left_out_like_another(path: str, silence: int, code: str) -> None:
    driver, options = with_value(), ((NO_RESPONSE, bytes([silence])),)
    answer = driver.ask(path, GET, options=options)
    assert answer.code == EMPTY if not code else is_ack(answer, code)
    sent = driver.exchange(request(path, GET, mid=2, type=NON, options=options))
    assert [dotted(packet.code) for packet in sent] == ([code] if code else [])


def test_a_response_to_a_fetch_is_left_out_like_another() -> None:
    driver = Driver()
    answer = driver.ask("t", FETCH, options=((NO_RESPONSE, b"\x02"),), payload=b"a/#")
    assert (answer.code, answer.mid, answer.token) == (EMPTY, 1, b"")


def test_an_error_of_a_post_that_is_not_wanted_is_left_out_before_anything_is_done() -> None:
    answer = Driver().ask(".well-known/x", options=((NO_RESPONSE, b"\x08"),))
    assert answer.code == EMPTY


def test_an_echo_is_asked_for_whatever_is_wanted() -> None:
    driver = Driver({"echo_fresh_s": 10})
    answer = driver.ask("t/a/b", options=((NO_RESPONSE, b"\x1a"),))
    assert is_ack(answer, "4.01")
