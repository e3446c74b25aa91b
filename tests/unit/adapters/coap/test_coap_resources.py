"""PUT and DELETE of resources, what their segments may hold, and their formats (RFC 7252, 5.8 and 5.10)."""

from urllib.parse import unquote

import pytest

from adapters.coap.codec.registry import ACK, CON, CONTENT_FORMAT, DELETE, GET, NON, POST, PUT, URI_PATH
from adapters.coap.codec.wire import encode_uint
from adapters.coap.endpoint.lookups import KNOWN_MS
from gateway.domain.address import check_address, escape_level, unescape_level
from gateway.domain.errors import Cause, Refusal
from gateway.domain.filters import matches
from gateway.port.adapter import DONE, Call, Outcome, Publish
from gateway.port.reads import LastValue
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, Driver, dotted, is_ack, options_of, request

VALUE = Message(address="a", body=b"1", id="1")
SEGMENTS = ["+", "#", "/", "%", "%2F", "%2f", "%252B", "a+b#c/d%", "\0", "é/+", "100%", "%%2B", "."]


# ---- PUT (5.8.3)


def test_a_put_that_creates_is_answered_2_01_and_one_that_changes_2_04() -> None:
    driver = Driver()
    assert is_ack(driver.ask("t/a", PUT, payload=b"1"), "2.01")
    driver.last = driver.stored[-1]
    assert is_ack(driver.ask("t/a", PUT, payload=b"2", mid=2), "2.04", mid=2)
    assert driver.calls == [LastValue(address="a")] * 2
    assert [message.body for message in driver.stored] == [b"1", b"2"]


def test_an_address_that_had_a_value_is_not_asked_for_again_at_once() -> None:
    driver = Driver(last=VALUE)
    for mid in (1, 2, 3):
        assert is_ack(driver.ask("t/a", PUT, mid=mid), "2.04", mid=mid)
    assert len(driver.calls) == 1
    driver.tick(KNOWN_MS)
    driver.last = None
    assert is_ack(driver.ask("t/a", PUT, mid=4), "2.01", mid=4)
    assert len(driver.calls) == 2


def test_a_value_that_will_expire_is_asked_for_each_time() -> None:
    driver = Driver(last=Message(address="a", expires_at_ms=2_000_000))
    for mid in (1, 2):
        assert is_ack(driver.ask("t/a", PUT, mid=mid), "2.04", mid=mid)
    assert len(driver.calls) == 2


def test_who_may_not_read_is_not_told_whether_there_was_a_value() -> None:
    driver = Driver()
    (call,) = driver.receive(request("t/a", PUT))
    refused = Outcome(error=Refusal(Cause.FORBIDDEN, "not yours"))
    driver.complete(list(driver.endpoint.completed(call.token, refused, now_ms=driver.now_ms)))
    (answer,) = driver.sent()
    assert is_ack(answer, "2.04")
    assert len(driver.stored) == 1
    assert is_ack(driver.ask("t/a", PUT, mid=2), "2.04", mid=2)
    assert driver.calls == []  # each time would count as a denied read


def test_what_is_published_behind_a_put_keeps_its_order() -> None:
    driver = Driver()
    effects = driver.receive(
        request("t/a", PUT, mid=1, payload=b"1"),
        request("t/a", POST, mid=2, payload=b"2"),
        request("t/a", DELETE, mid=3),
        request("t/a", PUT, mid=4, payload=b"4"),
        request("t/a", PUT, mid=5, payload=b"5"),
        request("t/b", POST, mid=6, payload=b"6"),
    )
    assert [type(effect) for effect in effects] == [Publish, Call]
    driver.complete(effects)
    assert [message.body for message in driver.stored if message.address == "a"] == [b"1", b"2", b"", b"4", b"5"]
    answers = {answer.mid: dotted(answer.code) for answer in driver.sent()}
    assert answers == {1: "2.01", 2: "2.01", 3: "2.02", 4: "2.01", 5: "2.04", 6: "2.01"}
    assert driver.endpoint.outstanding == 0
    assert driver.endpoint._publishing == {}


def test_a_put_that_waits_is_acknowledged_and_stored_once() -> None:
    driver = Driver()
    (call,) = driver.receive(request("t/a", PUT))
    assert driver.receive(request("t/a", PUT)) == []  # the same message again
    (ack,) = driver.tick(1_000)
    assert (ack.type, ack.code) == (ACK, 0)
    (publish,) = driver.endpoint.completed(call.token, Outcome(value=VALUE), now_ms=driver.now_ms)
    assert driver.tick(1_000) == []  # one empty acknowledgement is enough
    driver.endpoint.completed(publish.token, DONE, now_ms=driver.now_ms)
    (answer,) = driver.sent()
    assert (answer.type, dotted(answer.code)) == (CON, "2.04")


def test_puts_that_wait_are_limited_as_all_requests_are() -> None:
    driver = Driver({"requests_outstanding_max": 2})
    effects = driver.receive(*[request(f"t/{mid}", PUT, mid=mid) for mid in (1, 2, 3)])
    assert len(effects) == 2
    (busy,) = driver.sent()
    assert (busy.mid, dotted(busy.code)) == (3, "5.03")
    driver.complete(effects)
    assert {dotted(answer.code) for answer in driver.sent()} == {"2.01"}


def test_a_put_that_is_refused_says_so() -> None:
    driver = Driver()
    (call,) = driver.receive(request("t/a", PUT))
    (publish,) = driver.endpoint.completed(call.token, DONE, now_ms=driver.now_ms)
    outcome = Outcome(error=Refusal(Cause.FORBIDDEN, "no"))
    driver.endpoint.completed(publish.token, outcome, now_ms=driver.now_ms)
    (answer,) = driver.sent()
    assert is_ack(answer, "4.03")


# ---- DELETE (5.8.4)


@pytest.mark.parametrize("last", [VALUE, None])
@pytest.mark.parametrize(("type_", "answered"), [(CON, ACK), (NON, NON)])
def test_a_delete_takes_the_last_value_and_the_retained_message_away(
    type_: int, answered: int, last: Message | None
) -> None:
    driver = Driver(last=last)
    answer = driver.ask("t/a", DELETE, type=type_, payload=b"of no meaning")
    assert (answer.type, dotted(answer.code)) == (answered, "2.02")
    (message,) = driver.stored
    assert (message.address, message.body, message.retain, message.qos) == ("a", b"", True, int(type_ == CON))
    assert message.expired(driver.now_ms)
    driver.last = message
    assert dotted(driver.get("t/a", mid=2).code) == "4.04"


def test_a_delete_that_comes_twice_is_stored_once() -> None:
    driver = Driver()
    first = driver.exchange(request("t/a", DELETE))
    assert driver.exchange(request("t/a", DELETE)) == first
    assert len(driver.stored) == 1


def test_a_put_behind_a_delete_creates() -> None:
    driver = Driver(last=VALUE)
    driver.ask("t/a", PUT)
    driver.ask("t/a", DELETE, mid=2)
    driver.last = None
    assert is_ack(driver.ask("t/a", PUT, mid=3), "2.01", mid=3)


@pytest.mark.parametrize(("path", "code"), [("t", "4.05"), (".well-known/core", "4.05"), ("", "4.04"), ("t/", "4.00")])
def test_what_cannot_be_deleted(path: str, code: str) -> None:
    driver = Driver()
    assert dotted(driver.ask(path, DELETE).code) == code
    assert driver.stored == []


# ---- segments (5.10.1)


@pytest.mark.parametrize("text", [*SEGMENTS, "plain", ""])
def test_a_level_of_an_address_is_its_segment_escaped(text: str) -> None:
    level = escape_level(text)
    check_address(f"a/{level}")
    assert "/" not in level
    assert unescape_level(level) == text


def test_no_two_segments_share_an_address() -> None:
    assert len({escape_level(text) for text in SEGMENTS}) == len(SEGMENTS)


@pytest.mark.parametrize("text", [text for text in SEGMENTS if text != "."])
def test_any_segment_can_be_published_read_deleted_and_found_in_the_list(text: str) -> None:
    driver = Driver()
    segment = ((URI_PATH, b"t"), (URI_PATH, b"a"), (URI_PATH, text.encode()))
    assert dotted(driver.ask("", POST, options=segment, payload=b"1").code) == "2.01"
    address = driver.stored[0].address
    assert matches("a/+", address)
    driver.last = driver.stored[0]
    assert driver.get("", mid=2, options=segment).payload == b"1"
    assert driver.calls == [LastValue(address=address)]
    driver.listed = [address]
    listed = driver.ask(".well-known/core", GET, mid=3, query=("rt=core.ps.data",)).payload.decode()
    href = listed[1:].partition(">")[0]
    assert [unquote(part) for part in href.split("/")] == ["", "t", "a", text]
    for mid, query in ((4, f"href={href}"), (5, f"href={href[:-1]}*"), (6, f"href={href}*")):
        assert driver.ask(".well-known/core", GET, mid=mid, query=(query,)).payload.decode() == listed
        assert address.startswith(driver.calls[-1].prefix)
    assert dotted(driver.ask("", DELETE, mid=7, options=segment).code) == "2.02"
    assert driver.stored[1].address == address


# ---- Content-Format (5.10.3)


@pytest.mark.parametrize("number", [4_711, 65_000, 65_535])
def test_a_number_that_means_nothing_here_is_opaque_and_comes_back(number: int) -> None:
    driver = Driver()
    assert dotted(driver.ask("t/a", content_format=number, payload=b"\xff").code) == "2.01"
    driver.last = driver.stored[0]
    assert options_of(driver.get("t/a", mid=2))[CONTENT_FORMAT] == encode_uint(number)


@pytest.mark.parametrize("number", [0, 60, 11_050, 4_711])
def test_a_cloudevent_in_another_format_is_unsupported(number: int) -> None:
    driver = Driver()
    event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
    answer = driver.ask("t/a", content_format=number, query=("ct=application/cloudevents+json",), payload=event)
    assert is_ack(answer, "4.15")
    assert driver.stored == []
    assert (
        dotted(
            driver.ask("t/a", mid=2, content_format=50, query=("ct=application/cloudevents+json",), payload=event).code
        )
        == "2.01"
    )


# ---- messages (4.2 to 4.5)


@pytest.mark.parametrize("code", [DELETE, PUT])
def test_an_unknown_critical_option_is_refused_for_every_method(code: int) -> None:
    driver = Driver()
    assert is_ack(driver.ask("t/a", code, options=((9, b"x"),)), "4.02")
    assert driver.exchange(request("t/a", code, type=NON, mid=2, options=((9, b"x"),))) == []
    assert driver.stored == []
    assert driver.calls == []


def test_the_same_message_id_of_two_peers_is_two_requests() -> None:
    driver = Driver()
    driver.exchange(request("t/a", PUT))
    driver.exchange(request("t/a", PUT), peer=OTHER)
    assert len(driver.stored) == 2
