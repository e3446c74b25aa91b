"""Requests that observe and are repeated, and Message IDs that are not used again (RFC 7252, 4.4 and 4.5)."""

from typing import Any

import msgspec
import pytest

from adapters.coap.codec.registry import ACK, CON, GET, MAX_AGE, NON, OBSERVE, POST
from adapters.coap.codec.wire import Packet, encode, read_uint
from adapters.coap.exchanges import exchanges
from adapters.coap.exchanges.exchanges import READ_PEER_COUNT_MAX
from adapters.coap.exchanges.message_ids import (
    MID_COUNT,
    MID_LIFETIME_MS,
    MIDS_TAKEN_MAX,
    Numbering,
    SocketMessageIds,
)
from adapters.coap.oscore.association import Association
from adapters.coap.oscore.context import RequestId
from gateway.port.adapter import DONE
from store.api.message import Message
from tests.support.coap.coap_driver import PEER, Driver, dotted, options_of, request

REGISTER, DEREGISTER = (OBSERVE, b""), (OBSERVE, b"\x01")
EACH = ("each=true",)


def value(text: str) -> Message:
    return Message(address="a", body=text.encode(), id=f"id-{text}", content_type="text/plain")


def get(mid: int = 1, *options: tuple[int, bytes], **parts: Any) -> bytes:
    return request("t/a", GET, mid=mid, options=options, **parts)


def acknowledge(driver: Driver, packet: Packet) -> list[Packet]:
    return driver.exchange(encode(Packet(type=ACK, code=0, mid=packet.mid)))


def bodies(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets]


def test_a_repeated_registration_keeps_the_observation_and_gets_the_same_response() -> None:
    driver = Driver(last=value("0"))
    (answer,) = driver.exchange(get(1, REGISTER, query=EACH))
    (first,) = driver.deliver(value("1"), value("2"), value("3"))
    driver.last = value("3")
    assert driver.exchange(get(1, REGISTER, query=EACH)) == [answer]
    assert bodies(acknowledge(driver, first)) == [b"2"]
    assert len(driver.endpoint.observers) == 1


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_device_that_wakes_again_is_no_repeat_when_the_clock_is_set(by_ms: int) -> None:
    driver = Driver()
    for wakes in range(1, 7):
        socket = driver.socket
        driver.complete(list(socket.receive([(request("t/a", POST, mid=1), PEER)], now_ms=driver.now_ms)))
        assert len(driver.stored) == wakes
        assert driver.stored[-1].time_ms == driver.now_ms
        driver.now_ms += 600_000
        if wakes == 1:
            driver.now_ms += by_ms
            socket.clock_set(by_ms)


@pytest.mark.parametrize("by_ms", [-3_600_000, 3_600_000])
def test_a_repeat_is_one_when_the_clock_is_set(by_ms: int) -> None:
    driver = Driver()
    (answer,) = driver.exchange(request("t/a", POST, mid=1))
    driver.socket.clock_set(by_ms)
    driver.now_ms += by_ms + 60_000
    assert list(driver.socket.receive([(request("t/a", POST, mid=1), PEER)], now_ms=driver.now_ms)) == []
    assert driver.sent() == [answer]
    assert len(driver.stored) == 1


def test_a_last_value_expires_by_the_clock_as_it_is_set() -> None:
    driver = Driver({"max_age_s": 60}, last=msgspec.structs.replace(value("0"), expires_at_ms=1_000_000 + 30_000))
    driver.endpoint = driver.socket
    (answer,) = driver.exchange(get(1))
    assert read_uint(options_of(answer)[MAX_AGE]) == 30
    driver.socket.clock_set(30_000)
    driver.now_ms += 30_000
    (answer,) = driver.exchange(get(2))
    assert dotted(answer.code) == "4.04"


def test_a_repeated_registration_whose_observation_has_ended_observes_nothing() -> None:
    driver = Driver(last=value("0"))
    driver.exchange(get(1, REGISTER))
    driver.exchange(get(2, DEREGISTER))
    (answer,) = driver.exchange(get(1, REGISTER))
    assert dotted(answer.code) == "2.05"
    assert OBSERVE not in options_of(answer)
    assert driver.subscribed() == []


@pytest.mark.parametrize("options", [(DEREGISTER,), ()])
def test_a_repeated_request_that_has_ended_an_observation_does_not_end_the_next_one(
    options: tuple[tuple[int, bytes], ...],
) -> None:
    driver = Driver(last=value("0"))
    driver.exchange(get(1, REGISTER))
    driver.exchange(get(2, *options))
    driver.exchange(get(3, REGISTER))
    (answer,) = driver.exchange(get(2, *options))
    assert answer.payload == b"0"
    assert bodies(driver.deliver(value("1"), sub=2)) == [b"1"]


def test_a_repeated_registration_that_was_refused_is_refused_again() -> None:
    driver = Driver()
    (answer,) = driver.exchange(get(1, REGISTER))
    driver.last = value("1")
    assert dotted(answer.code) == "4.04"
    assert driver.exchange(get(1, REGISTER)) == [answer]
    assert driver.subscribed() == []


def test_a_registration_is_forgotten_after_its_lifetime() -> None:
    driver = Driver(last=value("0"))
    driver.exchange(get(1, REGISTER))
    driver.exchange(get(2, DEREGISTER))
    driver.now_ms += 247_000
    (answer,) = driver.exchange(get(1, REGISTER))
    assert OBSERVE in options_of(answer)


@pytest.mark.parametrize("options", [(), (REGISTER,)])
def test_a_repeated_get_that_was_answered_apart_has_no_other_response(options: tuple[tuple[int, bytes], ...]) -> None:
    driver = Driver(last=value("0"))
    effects = driver.receive(get(1, *options))
    (empty,) = driver.tick(1_000)
    driver.complete(effects)
    (answer,) = driver.sent()
    assert (answer.type, answer.payload) == (CON, b"0")
    acknowledge(driver, answer)
    driver.last = value("1")
    assert driver.exchange(get(1, *options)) == [empty]


def test_a_repeated_non_confirmable_get_has_no_other_response() -> None:
    driver = Driver(last=value("0"))
    assert len(driver.exchange(get(1, type=NON))) == 1
    driver.last = value("1")
    assert driver.exchange(get(1, type=NON)) == []


@pytest.mark.parametrize("value_first", [True, False], ids=["a value", "none"])
def test_a_repeated_get_has_the_same_response_for_its_lifetime(value_first: bool) -> None:
    driver = Driver(last=value("0") if value_first else None)
    (answer,) = driver.exchange(get(1))
    assert dotted(answer.code) == ("2.05" if value_first else "4.04")
    driver.last = value("1")
    driver.now_ms += 246_000
    assert driver.exchange(get(1)) == [answer]
    assert driver.exchange(get(1, token=b"other"))[0].payload == b"1"
    driver.now_ms += 247_000
    assert driver.exchange(get(1))[0].payload == b"1"


def test_a_response_whose_max_age_passes_is_read_again() -> None:
    """(RFC 7252, 5.10.5)"""
    driver = Driver({"max_age_s": 90}, last=value("0"))
    driver.exchange(get(1))
    driver.last = value("1")
    assert driver.exchange(get(1))[0].payload == b"1"


def test_the_newest_responses_of_a_peer_are_kept() -> None:
    driver = Driver(last=value("0"))
    for mid in range(READ_PEER_COUNT_MAX + 2):
        driver.exchange(get(mid))
    driver.last = value("1")
    bodies_then = [driver.exchange(get(mid))[0].payload for mid in reversed(range(2, READ_PEER_COUNT_MAX + 2))]
    assert set(bodies_then) == {b"0"}
    assert [driver.exchange(get(mid))[0].payload for mid in (0, 1)] == [b"1"] * 2


def test_responses_of_all_peers_are_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "READ_BYTES_MAX", 1_000)
    driver = Driver(last=value("0" * 200))
    for n in range(50):
        driver.exchange(get(1), peer=("192.0.2.9", n))
    kept = len(driver.endpoint.exchanges.by_peer)
    assert 2 <= kept <= 4
    driver.last = value("1")
    assert driver.exchange(get(1), peer=("192.0.2.9", 49))[0].payload == b"0" * 200
    assert driver.exchange(get(1), peer=("192.0.2.9", 0))[0].payload == b"1"
    driver.tick(300_000)
    assert driver.endpoint.exchanges.by_peer == {}


def test_responses_that_are_kept_keep_no_request_out() -> None:
    driver = Driver({"dedup_peer_max": 4, "peers_max": 3}, last=value("0"))
    for mid in range(8):
        assert dotted(driver.exchange(get(mid))[0].code) == "2.05"
    for n in range(8):
        driver.exchange(get(1), peer=("192.0.2.9", n))
    answers = [driver.exchange(request("t/b", mid=100 + n))[0] for n in range(2)]
    answers += [driver.exchange(request("t/b"), peer=("192.0.2.10", n))[0] for n in range(2)]
    assert [dotted(answer.code) for answer in answers] == ["2.01"] * 4


def test_numbers_rise_when_an_observation_takes_the_place_of_another() -> None:
    driver = Driver({"observe_confirm_every": 100}, last=value("0"))
    driver.exchange(get(1, REGISTER))
    last = driver.deliver(*[value(str(n)) for n in range(50)])[-1]
    (answer,) = driver.exchange(get(2, REGISTER))
    (sent,) = driver.deliver(value("50"), sub=2)
    numbers = [read_uint(options_of(packet)[OBSERVE]) for packet in (last, answer, sent)]
    assert numbers == sorted(set(numbers))


def test_a_notification_that_is_sent_again_has_a_number_and_a_max_age_that_are_right_then() -> None:
    """(RFC 7641, 4.4; RFC 7252, 5.10.5)"""
    driver = Driver({"observe_confirm_every": 1}, last=value("0"))
    driver.exchange(get(1, REGISTER))
    (sent,) = driver.deliver(msgspec.structs.replace(value("1"), expires_at_ms=driver.now_ms + 60_000))
    seen = [sent]
    while len(seen) < 5:
        seen += driver.tick(500)
    assert {(packet.type, packet.mid, packet.payload) for packet in seen} == {(CON, sent.mid, b"1")}
    options = [options_of(packet) for packet in seen]
    numbers = [read_uint(one[OBSERVE]) for one in options]
    assert numbers == sorted(set(numbers))
    left = [read_uint(one[MAX_AGE]) for one in options]
    assert left[0] == 60
    assert left == [60 - (number - numbers[0] + 999) // 1_000 for number in numbers]


def test_an_endpoint_that_observes_anew_gets_no_message_id_twice() -> None:
    driver = Driver({"observe_confirm_every": 100}, last=value("0"))
    mids = []
    for mid in range(10):
        driver.exchange(get(mid, REGISTER))
        mids += [packet.mid for packet in driver.deliver(*[value(str(n)) for n in range(20)], sub=mid + 1)]
    assert len(set(mids)) == 200


def apart(driver: Driver, mid: int) -> Packet:
    """Returns the response to a POST that is stored too late for its acknowledgement, and acknowledges it."""
    effects = driver.receive(request("t/b", POST, mid=mid, token=b"post"))
    driver.tick(1_000)
    driver.complete(effects, DONE)
    (answer,) = driver.sent()
    acknowledge(driver, answer)
    return answer


def test_a_response_does_not_take_the_message_id_of_a_notification() -> None:
    driver = Driver(last=value("0"))
    driver.exchange(get(1, REGISTER))
    mask = driver.endpoint.mids.mask
    (sent,) = driver.deliver(value("1"))
    assert apart(driver, sent.mid ^ mask).mid != sent.mid
    assert apart(driver, sent.mid ^ mask ^ 0x400).mid == sent.mid ^ 0x400
    driver.exchange(get(2, DEREGISTER))
    driver.now_ms += MID_LIFETIME_MS + 10_000
    assert apart(driver, sent.mid ^ mask).mid == sent.mid


def test_a_notification_does_not_take_the_message_id_of_a_response() -> None:
    driver = Driver(last=value("0"))
    first = 1 ^ driver.endpoint.mids.mask ^ 0x8000  # the Message ID of the first notification
    answers = [apart(driver, (first + n) % MID_COUNT ^ driver.endpoint.mids.mask).mid for n in range(3)]
    driver.receive(request("t/b", type=NON, mid=(first + 3) % MID_COUNT ^ driver.endpoint.mids.mask))
    driver.exchange(get(1, REGISTER))
    (sent,) = driver.deliver(value("1"))
    assert answers == [(first + n) % MID_COUNT for n in range(3)]
    assert sent.mid == (first + 4) % MID_COUNT


def test_a_numbering_forgets_what_was_used_a_lifetime_ago() -> None:
    numbering = Numbering(MID_COUNT - 2)
    mids = [numbering.take(0) for _ in range(4)]
    assert mids == [MID_COUNT - 2, MID_COUNT - 1, 0, 1]
    assert all(numbering.has(mid, 0) for mid in mids)
    assert not numbering.has(2, 0)
    assert not numbering.has(MID_COUNT - 3, 0)
    now_ms = MID_LIFETIME_MS + 10_000
    later = numbering.take(now_ms)
    assert numbering.has(later, now_ms)
    assert not any(numbering.has(mid, now_ms) for mid in mids)


def test_a_numbering_that_comes_round_has_used_them_all() -> None:
    numbering = Numbering(7)
    mids = [numbering.take(0) for _ in range(MID_COUNT + 3)]
    assert mids[:3] == mids[-3:] == [7, 8, 9]
    assert numbering.has(11, 0)


def test_an_endpoint_that_has_used_its_message_ids_up_is_not_searched_for_each_message() -> None:
    looked: list[int] = []
    answered = set(range(MID_COUNT))

    def is_answered(_peer: Any, mid: int) -> bool:
        looked.append(mid)
        return mid in answered

    mids = SocketMessageIds(0)
    mids.answered_apart.append(is_answered)
    numbering = mids.begin(PEER, 1)
    sent = [mids.of_notification(PEER, numbering, 0) for _ in range(4)]
    sent += [mids.of_response(PEER, sent[0], 0) for _ in range(4)]
    assert len(set(sent)) == 8
    assert len(looked) == MIDS_TAKEN_MAX
    later_ms = MID_LIFETIME_MS + 10_000
    free = (sent[-1] + 1_000) % MID_COUNT
    answered.remove(free)
    assert mids.of_notification(PEER, numbering, later_ms) == free


def test_a_protected_response_with_another_message_id_is_of_the_request_with_its_token() -> None:
    context: Any = None
    association = Association(context, ("h", 1), ("h", 1))
    asked = RequestId(b"kid", b"\x01")
    association.asked(7, b"tk", asked)
    parts = {"mask": 0x100, "piggybacked": False}
    for mid in (7 ^ 0x100, 99):
        found = association.request_of(mid, b"tk", **parts)
        assert found is not None
        assert found.id is asked
    assert association.request_of(99, b"other", **parts) is None
    association.answered(99, b"tk", **parts)
    assert association.request_of(7 ^ 0x100, b"tk", **parts) is None
