"""Observe (RFC 7641), driven by datagrams and a clock."""

from typing import Any

import pytest

from adapters.coap.codec.registry import (
    ACK,
    BLOCK2,
    CON,
    CONTENT_FORMAT,
    ETAG,
    GET,
    MAX_AGE,
    NO_RESPONSE,
    NON,
    OBSERVE,
    RST,
    SIZE2,
)
from adapters.coap.codec.wire import Packet, encode, encode_uint, read_uint
from adapters.coap.messages.request import Block
from adapters.coap.observe.observation import next_sequence
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, PEER, Driver, dotted, is_ack, options_of, request

REGISTER, DEREGISTER = (OBSERVE, b""), (OBSERVE, b"\x01")
CHECK_MS = 60_000


def value(text: str, **fields: Any) -> Message:
    return Message(address="a/b", body=text.encode(), id=f"id-{text}", content_type="text/plain", **fields)


def watching(**settings: Any) -> Driver:
    """Returns an endpoint whose address a/b is observed with the token `tk`."""
    driver = Driver(settings, last=value("0"))
    assert OBSERVE in options_of(driver.get("t/a/b", options=(REGISTER,)))
    assert driver.subscribed() == ["a/b"]
    return driver


def number_of(packet: Packet) -> int:
    return read_uint(options_of(packet)[OBSERVE])


def settle(driver: Driver, packet: Packet, kind: int = ACK, peer: tuple[Any, ...] = PEER) -> list[Packet]:
    return driver.exchange(encode(Packet(type=kind, code=0, mid=packet.mid)), peer=peer)


def until_confirmable(driver: Driver) -> Packet:
    """Delivers messages until one is sent in a Confirmable notification."""
    for n in range(100):
        (sent,) = driver.deliver(value(f"burst {n}"))
        if sent.type == CON:
            return sent
    raise AssertionError("no notification is Confirmable")


def test_a_registration_is_answered_with_the_last_value_and_a_number() -> None:
    driver = Driver(last=value("0"))
    answer = driver.get("t/a/b", options=(REGISTER,))
    assert is_ack(answer, "2.05")
    assert answer.payload == b"0"
    assert number_of(answer) == driver.now_ms & 0xFF_FFFF
    assert read_uint(options_of(answer)[MAX_AGE]) == 600 + 60 + 93


def test_a_plain_get_registers_nothing() -> None:
    driver = Driver(last=value("0"))
    assert OBSERVE not in options_of(driver.get("t/a/b"))
    assert driver.subscribed() == []


def test_each_message_is_a_notification_with_the_token_and_a_higher_number() -> None:
    driver = watching()
    sent = driver.deliver(value("1"), value("2"), value("3"))
    assert [(packet.type, dotted(packet.code), packet.token, packet.payload) for packet in sent] == [
        (NON, "2.05", b"tk", text) for text in (b"1", b"2", b"3")
    ]
    numbers = [number_of(packet) for packet in sent]
    assert numbers == sorted(set(numbers))
    assert len({packet.mid for packet in sent}) == 3
    assert all(len(options_of(packet)[ETAG]) == 8 for packet in sent)


def test_numbers_rise_over_a_restart() -> None:
    before = watching()
    last = before.deliver(*[value(str(n)) for n in range(15)])[-1]
    after = Driver(now_ms=before.now_ms + 100, last=value("0"))
    assert number_of(after.get("t/a/b", options=(REGISTER,))) > number_of(last)


@pytest.mark.parametrize(("last", "now_ms", "told"), [(0, 5, 5), (5, 5, 6), (500, 5, 501), (6, 9, 9)])
def test_a_number_follows_the_clock_and_never_falls(last: int, now_ms: int, told: int) -> None:
    assert next_sequence(last, now_ms) == told


def test_a_number_wraps_at_24_bits() -> None:
    driver = Driver(now_ms=1 << 24, last=value("0"))
    assert number_of(driver.get("t/a/b", options=(REGISTER,))) == 0


def test_every_nth_notification_is_confirmable() -> None:
    driver = watching(observe_confirm_every=3)
    assert [packet.type for packet in driver.deliver(value("1"), value("2"), value("3"))] == [NON, NON, CON]


def test_the_newest_message_waits_for_an_acknowledgement() -> None:
    driver = watching(observe_confirm_every=2)
    first = driver.deliver(value("1"), value("2"), value("3"), value("4"))
    assert [packet.payload for packet in first] == [b"1", b"2"]
    (newest,) = settle(driver, first[-1])
    assert (newest.type, newest.payload) == (CON, b"4")
    assert number_of(newest) > number_of(first[-1])
    assert settle(driver, newest) == []
    assert [packet.type for packet in driver.deliver(value("5"))] == [NON]


def test_a_retransmission_carries_the_newest_value_and_keeps_the_count() -> None:
    driver = watching(observe_confirm_every=1, max_retransmit=2)
    (first,) = driver.deliver(value("1"))
    assert driver.deliver(value("2"), value("3")) == []
    (second,) = driver.tick(3_000)
    assert (second.type, second.payload) == (CON, b"3")
    assert second.mid != first.mid
    assert number_of(second) > number_of(first)
    assert [packet.payload for packet in driver.tick(6_000)] == [b"3"]  # the timeout has doubled
    assert driver.deliver(value("4")) == []
    assert driver.tick(12_000) == []
    assert driver.subscribed() == []  # given up after two retransmissions, of whichever value


def test_a_late_acknowledgement_of_an_older_value_does_not_settle_the_newer_one() -> None:
    driver = watching(observe_confirm_every=1)
    (first,) = driver.deliver(value("1"))
    driver.deliver(value("2"))
    (second,) = driver.tick(3_000)
    assert settle(driver, first) == []
    assert [packet.mid for packet in driver.tick(6_000)] == [second.mid]
    assert settle(driver, second) == []
    assert driver.tick(50_000) == []


def test_a_value_that_cannot_be_told_takes_the_place_of_a_retransmission_too() -> None:
    driver = watching(observe_confirm_every=1, max_retransmit=1)
    (first,) = driver.deliver(value("1"))
    driver.deliver(value("2", expires_at_ms=driver.now_ms + 1))
    (last,) = driver.tick(3_000)
    assert (last.type, dotted(last.code)) == (CON, "4.04")
    assert last.mid != first.mid
    assert driver.subscribed() == []
    assert driver.tick(6_000) == []  # the one retransmission was taken


def test_who_wants_no_representation_observes_nothing() -> None:
    driver = watching()
    answer = driver.get("t/a/b", mid=2, options=(REGISTER, (NO_RESPONSE, b"\x02")))
    assert answer.code == 0
    assert driver.subscribed() == []
    driver.get("t/a/b", mid=3, options=(REGISTER,))
    answer = driver.get("t/a/b", mid=4, options=(DEREGISTER, (NO_RESPONSE, b"\x1a")))
    assert answer.code == 0
    assert driver.subscribed() == []


def test_an_observer_that_wants_no_errors_is_not_told_of_the_end() -> None:
    driver = Driver(last=value("0"))
    assert OBSERVE in options_of(driver.get("t/a/b", options=(REGISTER, (NO_RESPONSE, b"\x18"))))
    assert driver.deliver(value("1", expires_at_ms=driver.now_ms - 1)) == []
    assert driver.tick(0) == []
    assert driver.subscribed() == []


def test_an_observer_that_does_not_acknowledge_is_forgotten() -> None:
    driver = watching()
    confirmable = until_confirmable(driver)
    again = [packet for _ in range(100) for packet in driver.tick(1_000)]
    assert [(packet.type, packet.mid, packet.payload) for packet in again] == [
        (CON, confirmable.mid, confirmable.payload)
    ] * 4
    assert driver.subscribed() == []
    assert len(driver.endpoint.observers) == 0


def test_a_reset_of_a_confirmable_notification_ends_the_observation() -> None:
    driver = watching()
    settle(driver, until_confirmable(driver), RST)
    assert driver.subscribed() == []
    assert driver.tick(10_000) == []


def test_a_reset_of_a_notification_that_is_not_confirmable_ends_the_observation() -> None:
    driver = watching()
    (sent, _) = driver.deliver(value("1"), value("2"))
    assert settle(driver, sent, RST, OTHER) == []
    assert driver.subscribed() == ["a/b"]
    settle(driver, sent, RST)
    assert driver.subscribed() == []


def test_observe_1_ends_the_observation() -> None:
    driver = watching()
    answer = driver.get("t/a/b", mid=2, options=(DEREGISTER,))
    assert is_ack(answer, "2.05", mid=2)
    assert OBSERVE not in options_of(answer)
    assert driver.subscribed() == []


@pytest.mark.parametrize(("token", "peer"), [(b"ot", PEER), (b"tk", OTHER)])
def test_observe_1_of_another_token_or_endpoint_ends_nothing(token: bytes, peer: tuple[Any, ...]) -> None:
    driver = watching()
    driver.exchange(request("t/a/b", GET, mid=2, token=token, options=(DEREGISTER,)), peer=peer)
    assert driver.subscribed() == ["a/b"]


def test_a_get_with_the_same_token_ends_the_observation() -> None:
    driver = watching()
    driver.get("t/c", mid=2)
    assert driver.subscribed() == []


def test_a_new_registration_with_the_same_token_replaces_the_observation() -> None:
    driver = watching()
    driver.get("t/a/b", mid=2, options=(REGISTER,))
    assert driver.subscribed() == ["a/b"]
    (sub,) = driver.subscriptions
    assert len(driver.deliver(value("1"), sub=sub)) == 1
    assert len(driver.endpoint.observers) == 1


def test_an_address_without_a_value_is_not_observed() -> None:
    driver = Driver()
    answer = driver.get("t/a/b", options=(REGISTER,))
    assert is_ack(answer, "4.04")
    assert OBSERVE not in options_of(answer)
    assert driver.subscribed() == []


def test_a_reader_without_the_right_is_refused() -> None:
    driver = Driver()
    refusal = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    assert is_ack(driver.get("t/a/b", options=(REGISTER,), outcome=refusal), "4.03")
    assert driver.subscribed() == []


def test_a_right_that_is_lost_ends_the_observation() -> None:
    driver = watching()
    driver.now_ms += CHECK_MS
    effects = list(driver.endpoint.tick(now_ms=driver.now_ms))
    driver.complete(effects, Outcome(error=Refusal(Cause.FORBIDDEN, "no")))
    (sent,) = driver.sent()
    assert (sent.type, dotted(sent.code), sent.token) == (CON, "4.03", b"tk")
    assert OBSERVE not in options_of(sent)
    assert driver.subscribed() == []


def test_a_check_that_fails_for_now_ends_nothing() -> None:
    driver = watching()
    driver.now_ms += CHECK_MS
    effects = list(driver.endpoint.tick(now_ms=driver.now_ms))
    driver.complete(effects, Outcome(error=Refusal(Cause.UNAVAILABLE, "later")))
    assert driver.sent() == []
    assert driver.subscribed() == ["a/b"]


def test_a_deletion_ends_the_observation() -> None:
    driver = watching()
    (sent,) = driver.deliver(value("", expires_at_ms=driver.now_ms))
    assert (sent.type, dotted(sent.code), sent.token) == (CON, "4.04", b"tk")
    assert driver.endpoint.deadline_ms() == 0
    assert driver.tick(1) == []
    assert driver.subscribed() == []
    assert driver.tick(5_000) == [sent]  # until it is acknowledged
    assert settle(driver, sent) == []
    assert driver.tick(100_000) == []


def test_another_content_format_ends_the_observation() -> None:
    driver = watching()
    (sent,) = driver.deliver(Message(address="a/b", body=b"{}", id="x", content_type="application/json"))
    assert dotted(sent.code) == "4.06"
    driver.tick(1)
    assert driver.subscribed() == []


def test_a_lost_notification_is_made_good_by_the_next_check() -> None:
    driver = watching()
    (lost,) = driver.deliver(value("1"))
    driver.last = value("1")
    (again,) = driver.tick(CHECK_MS)
    assert (again.type, again.payload) == (CON, b"1")
    assert number_of(again) > number_of(lost)
    settle(driver, again)
    assert driver.tick(CHECK_MS) == []


def test_a_silent_endpoint_is_found() -> None:
    driver = watching(observe_confirm_ms=120_000)
    assert driver.tick(CHECK_MS) == []
    (asked,) = driver.tick(CHECK_MS)
    assert (asked.type, asked.payload) == (CON, b"0")
    for _ in range(100):
        driver.tick(1_000)
    assert driver.subscribed() == []


def test_a_check_that_was_overtaken_by_a_message_sends_nothing() -> None:
    driver = watching()
    driver.now_ms += CHECK_MS
    effects = list(driver.endpoint.tick(now_ms=driver.now_ms))
    assert len(driver.deliver(value("1"))) == 1
    driver.complete(effects)
    assert driver.sent() == []


def test_a_message_that_comes_before_the_response_follows_it() -> None:
    driver = Driver(last=value("0"))
    effects = driver.receive(request("t/a/b", GET, options=(REGISTER,)))
    driver.complete(effects[:1])
    assert driver.deliver(value("1"), value("2")) == []
    driver.complete(effects[1:])
    answer, follows = driver.sent()
    assert (answer.payload, follows.payload) == (b"0", b"2")
    assert number_of(follows) > number_of(answer)


def test_a_message_that_the_response_has_does_not_follow_it() -> None:
    driver = Driver(last=value("1"))
    effects = driver.receive(request("t/a/b", GET, options=(REGISTER,)))
    driver.complete(effects[:1])
    driver.deliver(value("1"))
    driver.complete(effects[1:])
    assert [packet.payload for packet in driver.sent()] == [b"1"]


def test_observers_beyond_the_limit_of_an_endpoint_are_only_answered() -> None:
    driver = watching(observers_peer_max=1)
    answer = driver.get("t/a/b", mid=2, token=b"t2", options=(REGISTER,))
    assert is_ack(answer, "2.05", mid=2, token=b"t2")
    assert OBSERVE not in options_of(answer)
    assert len(driver.endpoint.observers) == 1


def test_observers_beyond_the_limit_of_all_are_only_answered() -> None:
    driver = watching(observers_max=1)
    (answer,) = driver.exchange(request("t/c", GET, options=(REGISTER,)), peer=OTHER)
    assert OBSERVE not in options_of(answer)
    assert driver.subscribed() == ["a/b"]


def test_observers_of_one_address_share_a_subscription() -> None:
    driver = watching()
    driver.exchange(request("t/a/b", GET, options=(REGISTER,)), peer=OTHER)
    assert driver.subscribed() == ["a/b"]
    assert len(driver.deliver(value("1"))) == 2
    driver.get("t/a/b", mid=2, options=(DEREGISTER,))
    assert driver.subscribed() == ["a/b"]
    assert len(driver.deliver(value("2"))) == 1


def test_a_large_notification_is_its_first_block() -> None:
    driver = watching(block_size=16)
    (sent,) = driver.deliver(value("0123456789abcdefXYZ"))
    options = options_of(sent)
    assert sent.payload == b"0123456789abcdef"
    assert options[BLOCK2] == Block(0, True, 0).encode()
    assert options[SIZE2] == encode_uint(19)
    rest = driver.get("t/a/b", mid=2, token=b"t2", options=((BLOCK2, Block(1, False, 0).encode()),))
    assert rest.payload == b"XYZ"
    assert options_of(rest)[ETAG] == options[ETAG]
    assert OBSERVE not in options_of(rest)
    assert driver.subscribed() == ["a/b"]


def test_a_notification_lives_no_longer_than_its_message() -> None:
    driver = watching()
    (sent,) = driver.deliver(value("1", expires_at_ms=driver.now_ms + 7_000))
    assert options_of(sent)[MAX_AGE] == b"\x07"


def test_links_are_not_observed() -> None:
    driver = Driver(listed=["a/b"])
    assert OBSERVE not in options_of(driver.get("t", options=(REGISTER,)))
    assert driver.subscribed() == []


def test_notifications_keep_the_content_format() -> None:
    driver = watching()
    (sent,) = driver.deliver(value("1"))
    assert options_of(sent)[CONTENT_FORMAT] == b""


def test_observe_is_passed_over_in_a_post() -> None:
    driver = Driver()
    answer = driver.ask("t/a/b", options=(REGISTER,))
    assert is_ack(answer, "2.01")
    assert OBSERVE not in options_of(answer)
    assert driver.subscribed() == []


def test_a_first_response_without_a_content_format_is_kept_to() -> None:
    driver = Driver(last=Message(address="a/b", body=b"0", id="0"))
    driver.get("t/a/b", options=(REGISTER,))
    (sent,) = driver.deliver(Message(address="a/b", body=b"1", id="1"))
    assert (dotted(sent.code), sent.payload) == ("2.05", b"1")
    (sent,) = driver.deliver(value("2"))
    assert dotted(sent.code) == "4.06"


def test_the_last_of_a_confirmable_notification_and_an_error_is_the_error() -> None:
    driver = watching()
    until_confirmable(driver)
    driver.now_ms += CHECK_MS - 1
    driver.endpoint.take_output()
    driver.now_ms += 1
    effects = list(driver.endpoint.tick(now_ms=driver.now_ms))
    driver.sent()
    driver.complete(effects, Outcome(error=Refusal(Cause.FORBIDDEN, "no")))
    (error,) = driver.sent()
    assert dotted(error.code) == "4.03"
    assert {packet.mid for packet in driver.tick(10_000)} == {error.mid}
    settle(driver, error)
    assert driver.tick(100_000) == []


def test_waiting_messages_take_the_room_of_one() -> None:
    driver = watching()
    confirmable = until_confirmable(driver)
    for n in range(1_000):
        assert driver.deliver(value(f"more {n}")) == []
    (newest,) = settle(driver, confirmable)
    assert newest.payload == b"more 999"
    assert settle(driver, newest) == []


def test_an_acknowledgement_that_comes_again_changes_nothing() -> None:
    driver = watching()
    confirmable = until_confirmable(driver)
    driver.deliver(value("next"))
    (newest,) = settle(driver, confirmable)
    driver.deliver(value("last"))
    assert settle(driver, confirmable) == []
    assert [packet.payload for packet in settle(driver, newest)] == [b"last"]


# ---- each message


EACH = ("each=true",)


def commanded(**settings: Any) -> Driver:
    driver = Driver(settings, last=value("0"))
    assert OBSERVE in options_of(driver.get("t/a/b", query=EACH, options=(REGISTER,)))
    return driver


def test_who_wants_each_message_has_them_one_after_the_other() -> None:
    driver = commanded()
    (sent,) = driver.deliver(*[value(str(n)) for n in range(1, 41)])
    heard = []
    for _ in range(40):
        assert sent.type == CON
        heard.append(sent.payload)
        following = settle(driver, sent)
        if following:
            (sent,) = following
    assert heard == [str(n).encode() for n in range(1, 41)]
    assert driver.tick(CHECK_MS) == []


def test_a_command_that_is_not_acknowledged_is_sent_again_and_the_next_one_waits() -> None:
    driver = commanded()
    (sent,) = driver.deliver(value("1"), value("2"))
    (again,) = driver.tick(4_000)
    assert (again.mid, again.payload) == (sent.mid, b"1")
    assert number_of(again) > number_of(sent)
    assert [packet.payload for packet in settle(driver, sent)] == [b"2"]


def test_commands_that_come_while_it_registers_follow_the_answer() -> None:
    driver = Driver(last=value("0"))
    effects = driver.receive(request("t/a/b", GET, query=EACH, options=(REGISTER,)))
    driver.complete([effect for effect in effects if not hasattr(effect, "request")])
    assert driver.deliver(value("1"), value("2")) == []
    driver.complete([effect for effect in effects if hasattr(effect, "request")])
    answer, first = driver.sent()
    assert (answer.payload, first.payload) == (b"0", b"1")
    assert [packet.payload for packet in settle(driver, first)] == [b"2"]


def test_too_many_commands_that_wait_end_the_observation() -> None:
    driver = commanded()
    sent = driver.deliver(*[value(str(n)) for n in range(100)])
    assert dotted(sent[-1].code) == "5.03"
