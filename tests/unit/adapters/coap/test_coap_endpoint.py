"""The message layer: acknowledgements, repetitions, rejections, retransmission, limits."""

from random import Random

import pytest

from adapters.coap import FACTORY
from adapters.coap.codec.registry import (
    ACCEPT,
    ACK,
    BAD_REQUEST,
    BLOCK1,
    CON,
    CREATED,
    GET,
    MAX_AGE,
    NON,
    OBSERVE,
    POST,
    PUT,
    RST,
    SIZE1,
    URI_HOST,
    URI_PORT,
)
from adapters.coap.codec.wire import Packet, decode, encode
from adapters.coap.endpoint.endpoint import CoapEndpoint
from adapters.coap.endpoint.plans import CONNECTION_PLANS_MAX, PLANS_MAX, USER_PLANS_MAX
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Call, ConnectionInfo, Outcome, Publish
from gateway.port.reads import LastValue
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, PEER, Driver, dotted, is_ack, options_of, request

LIFETIME_MS = 247_000
NON_LIFETIME_MS = 145_000


def refusing(cause: Cause, retry_after_ms: int = 0) -> Outcome:
    return Outcome(error=Refusal(cause, "no", retry_after_ms=retry_after_ms))


# ---- publishing


def test_nothing_is_answered_before_it_is_stored() -> None:
    driver = Driver()
    effects = driver.receive(request("t/a"))
    assert driver.sent() == []
    driver.complete(effects)
    (answer,) = driver.sent()
    assert is_ack(answer, "2.01")


def test_one_publish_for_all_of_a_wake() -> None:
    driver = Driver()
    datagrams = [request(f"t/a/{n}", mid=n, token=bytes([n]), type=n % 2) for n in range(10)]
    (effect,) = driver.receive(*datagrams[:5], request("t/x", GET, mid=99), *datagrams[5:])[:1]
    assert isinstance(effect, Publish)
    assert [message.address for message in effect.messages] == [f"a/{n}" for n in range(10)]
    driver.complete([effect])
    answers = driver.sent()
    assert [answer.token for answer in answers] == [bytes([n]) for n in range(10)]
    assert [answer.type for answer in answers] == [ACK, NON] * 5


@pytest.mark.parametrize("length", range(9))
def test_every_length_of_token(length: int) -> None:
    driver = Driver()
    token = bytes(range(length))
    for mid, kind in enumerate((CON, NON)):
        answer = driver.ask("t/a", token=token, mid=mid, type=kind)
        assert (answer.token, answer.code, answer.type) == (token, CREATED, ACK if kind == CON else NON)


def test_a_body_may_hold_anything_and_may_be_missing() -> None:
    driver = Driver()
    for mid, body in enumerate((b"\xff\xff", b"", b"\x00", b"\xff")):
        driver.ask("t/a", payload=body, mid=mid)
    assert [message.body for message in driver.stored] == [b"\xff\xff", b"", b"\x00", b"\xff"]


def test_options_that_hold_the_payload_markers_byte() -> None:
    driver = Driver()
    for mid in range(3):
        driver.ask("t/a", content_format=0xFF, payload=b"body", mid=2 * mid)
        driver.ask("t/a", payload=b"\xff", mid=2 * mid + 1)
    assert [message.body for message in driver.stored] == [b"body", b"\xff"] * 3
    assert [message.native for message in driver.stored[:2]] == [{"coap": {"content_format": 255}}, None]


def test_what_is_stored_is_answered_and_what_is_refused_too() -> None:
    driver = Driver()
    effects = driver.receive(*[request("t/a", mid=mid) for mid in range(3)])
    refusal = Refusal(Cause.FORBIDDEN, "not yours")
    driver.complete(effects, Outcome(refused={1: refusal}))
    answers = driver.sent()
    assert [dotted(answer.code) for answer in answers] == ["2.01", "4.03", "2.01"]
    assert [answer.payload for answer in answers] == [b"", b"not yours", b""]


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Cause.UNAUTHENTICATED, "4.01"),
        (Cause.FORBIDDEN, "4.03"),
        (Cause.MALFORMED, "4.00"),
        (Cause.NOT_FOUND, "4.04"),
        (Cause.CONFLICT, "4.09"),
        (Cause.PRECONDITION, "4.12"),
        (Cause.TOO_LARGE, "4.13"),
        (Cause.QUOTA, "4.29"),
        (Cause.OVERLOAD, "5.03"),
        (Cause.UNAVAILABLE, "5.03"),
        (Cause.UNKNOWN, "5.04"),
    ],
)
@pytest.mark.parametrize("method", [POST, GET])
def test_every_cause_has_its_code(cause: Cause, code: str, method: int) -> None:
    driver = Driver({"max_body_bytes": 300})
    options = options_of(answer := driver.ask("t/a", method, outcome=refusing(cause, 1_001)))
    assert is_ack(answer, code)
    assert answer.payload == b"no"
    assert options.get(MAX_AGE) == (b"\x02" if code in {"4.29", "5.03"} else None)
    assert options.get(SIZE1) == (b"\x01\x2c" if code == "4.13" else None)


def test_a_retry_hint_there_is_none_of() -> None:
    answer = Driver().ask("t/a", outcome=refusing(Cause.UNAVAILABLE))
    assert options_of(answer)[MAX_AGE] == b"\x02"


def test_a_minute_is_the_default() -> None:
    """(RFC 7252, 5.4.4)"""
    assert MAX_AGE not in options_of(Driver().ask("t/a", outcome=refusing(Cause.UNAVAILABLE, 60_000)))


def test_a_used_up_share_does_not_say_when_it_is_there_again() -> None:
    answer = Driver().ask("t/a", outcome=refusing(Cause.QUOTA))
    assert dotted(answer.code) == "4.29"
    assert MAX_AGE not in options_of(answer)


def test_a_diagnostic_is_cut_between_characters() -> None:
    outcome = Outcome(error=Refusal(Cause.FORBIDDEN, "x" + "ü" * 1000 + "\ud800"))
    payload = Driver().ask("t/a", outcome=outcome).payload
    assert payload.decode() == "x" + "ü" * 63


def test_too_large_a_body() -> None:
    driver = Driver({"max_body_bytes": 100})
    for mid in range(2):  # also when the options are known already
        assert dotted(driver.ask("t/a", payload=b"x" * 100, mid=2 * mid).code) == "2.01"
        answer = driver.ask("t/a", payload=b"x" * 101, mid=2 * mid + 1)
        assert dotted(answer.code) == "4.13"
        assert options_of(answer)[SIZE1] == b"\x64"


# ---- repetitions (RFC 7252, 4.5)


def test_a_repeated_request_gets_the_same_response_and_is_stored_once() -> None:
    driver = Driver()
    data = request("t/a", payload=b"x")
    (first,) = driver.exchange(data)
    driver.now_ms += LIFETIME_MS - 1
    assert driver.exchange(data, data) == [first, first]
    assert len(driver.stored) == 1


def test_a_repeated_refusal_is_the_same_refusal() -> None:
    driver = Driver()
    data = request("t/a")
    (first,) = driver.exchange(data, outcome=refusing(Cause.QUOTA, 5_000))
    assert driver.exchange(data) == [first]
    (stored,) = driver.stored
    assert stored == Message(address="a", time_ms=driver.now_ms, protocol="coap", device=PEER[0], principal="")


def test_a_repetition_in_the_same_wake_and_before_the_outcome() -> None:
    driver = Driver()
    data = request("t/a")
    effects = driver.receive(data, data)
    assert driver.receive(data) == []
    driver.complete(effects)
    assert len(driver.sent()) == 1
    assert len(driver.stored) == 1


def test_a_repeated_non_is_passed_over() -> None:
    driver = Driver()
    data = request("t/a", type=NON)
    assert len(driver.exchange(data)) == 1
    assert driver.exchange(data) == []
    assert len(driver.stored) == 1


def test_a_message_id_is_free_after_its_lifetime() -> None:
    driver = Driver()
    data = request("t/a")
    driver.exchange(data)
    driver.now_ms += LIFETIME_MS
    assert is_ack(driver.exchange(data)[0], "2.01")
    driver.now_ms += LIFETIME_MS - 1
    driver.exchange(data)
    assert len(driver.stored) == 2


def test_a_message_id_of_a_non_is_free_after_non_lifetime() -> None:
    driver = Driver()
    data = request("t/a", type=NON)
    driver.exchange(data)
    driver.now_ms += NON_LIFETIME_MS - 1
    assert driver.exchange(data) == []
    driver.now_ms += 1
    assert len(driver.exchange(data)) == 1
    assert len(driver.stored) == 2


def test_message_ids_belong_to_their_peer() -> None:
    driver = Driver()
    data = request("t/a")
    driver.exchange(data)
    driver.exchange(data, peer=OTHER)
    driver.exchange(data, peer=(PEER[0], PEER[1] + 1))
    assert len(driver.stored) == 3


def test_another_token_is_another_request() -> None:
    driver = Driver()
    driver.exchange(request("t/a", token=b"1"))
    (answer,) = driver.exchange(request("t/a", token=b"2"))
    assert is_ack(answer, "2.01", token=b"2")
    assert driver.exchange(request("t/a", token=b"2")) == [answer]
    assert len(driver.stored) == 2


def test_a_get_is_asked_once_while_it_is_under_way() -> None:
    driver = Driver()
    data = request("t/a", GET)
    (call,) = driver.receive(data)
    assert driver.receive(data) == []
    driver.complete([call])
    (answer,) = driver.sent()
    assert driver.receive(data) == []
    assert driver.sent() == [answer]


def test_what_is_old_is_forgotten() -> None:
    driver = Driver()
    for mid in range(100):
        driver.now_ms += 10
        driver.exchange(request("t/a", mid=mid), peer=(str(mid), 1))
    deadline = driver.endpoint.deadline_ms()
    assert deadline is not None
    assert driver.now_ms < deadline <= driver.now_ms + LIFETIME_MS + 1_000
    while (deadline := driver.endpoint.deadline_ms()) is not None:
        driver.endpoint.tick(now_ms=deadline)
    assert len(driver.endpoint.exchanges) == 0
    assert driver.endpoint.exchanges.by_peer == {}


# ---- separate responses (RFC 7252, 5.2.2)


def slow(driver: Driver, data: bytes) -> list[object]:
    """Sends a request that is acknowledged before it is answered, and returns its effects."""
    effects = driver.receive(data)
    assert driver.tick(999) == []
    (ack,) = driver.tick(1)
    assert (ack.type, ack.code, ack.mid, ack.token) == (ACK, 0, 1, b"")
    return effects


@pytest.mark.parametrize("method", [POST, PUT, GET])
def test_a_late_answer_travels_in_a_message_of_its_own(method: int) -> None:
    driver = Driver(last=Message(address="a", body=b"v", id="1"))
    data = request("t/a", method)
    effects = slow(driver, data)
    assert driver.exchange(data)[0].code == 0
    driver.complete(effects)
    (answer,) = driver.sent()
    assert (answer.type, answer.token) == (CON, b"tk")
    assert dotted(answer.code) == {POST: "2.01", PUT: "2.04", GET: "2.05"}[method]
    driver.exchange(encode(Packet(type=ACK, code=0, mid=answer.mid)))
    assert driver.tick(300_000) == []


def test_a_non_gets_no_acknowledgement_and_one_response() -> None:
    driver = Driver()
    effects = driver.receive(request("t/a", type=NON))
    assert driver.tick(5_000) == []
    driver.complete(effects)
    (answer,) = driver.sent()
    assert (answer.type, dotted(answer.code), answer.token) == (NON, "2.01", b"tk")
    assert driver.tick(5_000) == []


def test_a_separate_response_is_sent_again_until_it_is_given_up() -> None:
    driver = Driver()
    driver.complete(slow(driver, request("t/a")))
    (answer,) = driver.sent()
    gaps = []
    for _ in range(4):
        waited = 0
        while not (again := driver.tick(1)):
            waited += 1
        gaps.append(waited + 1)
        assert again == [answer]
    assert 2_000 <= gaps[0] <= 3_000
    assert gaps[1:] == [2 * gaps[0], 4 * gaps[0], 8 * gaps[0]]
    assert driver.tick(200_000) == []


@pytest.mark.parametrize("kind", [ACK, RST])
def test_it_is_sent_again_no_more_once_the_peer_has_it_or_refuses_it(kind: int) -> None:
    driver = Driver()
    driver.complete(slow(driver, request("t/a")))
    (answer,) = driver.sent()
    driver.exchange(encode(Packet(type=kind, code=0, mid=answer.mid)), peer=OTHER)
    assert driver.tick(3_000) == [answer]
    driver.exchange(encode(Packet(type=kind, code=0, mid=answer.mid)))
    assert driver.tick(200_000) == []


def test_a_late_refusal_is_separate_too() -> None:
    driver = Driver()
    driver.complete(slow(driver, request("t/a")), refusing(Cause.UNAVAILABLE))
    (answer,) = driver.sent()
    assert (answer.type, dotted(answer.code), answer.token) == (CON, "5.03", b"tk")


def test_our_message_ids_differ_from_each_other_as_the_peers_do() -> None:
    driver = Driver()
    answers = driver.exchange(*[request("t/a", mid=mid, type=NON) for mid in range(500)])
    assert len({answer.mid for answer in answers}) == 500


# ---- what is no request


def test_a_ping_is_answered_with_a_reset() -> None:
    (answer,) = Driver().exchange(bytes.fromhex("40001234"))
    assert (answer.type, answer.code, answer.mid) == (RST, 0, 0x1234)


@pytest.mark.parametrize(
    "data",
    [
        "4900123400" + "00" * 8,  # Empty, with a token and more
        "4f021234" + "00" * 15,  # reserved token length
        "44021234aabb",  # token cut short
        "40021234ff",  # payload marker without a payload
        "40021234b161ff",
        "40021234f0",  # reserved option delta
        "40021234b561",  # option cut short
        "40451234",  # a response to nothing
        "40201234",  # reserved classes
        "40c01234",
        "40e11234",
    ],
)
def test_what_is_no_request_is_reset_or_passed_over(data: str) -> None:
    driver = Driver()
    confirmable = bytes.fromhex(data)
    (answer,) = driver.exchange(confirmable)
    assert (answer.type, answer.code, answer.mid) == (RST, 0, 0x1234)
    for kind in (NON, ACK, RST):
        assert driver.exchange(bytes([confirmable[0] | kind << 4]) + confirmable[1:]) == []


@pytest.mark.parametrize(
    "data", ["", "40", "4002", "400200", "00021234", "80021234", "c0021234", "60001234", "70001234"]
)
def test_what_is_passed_over(data: str) -> None:
    assert Driver().exchange(bytes.fromhex(data)) == []


def test_one_bad_datagram_hurts_no_other() -> None:
    driver = Driver()
    answers = driver.exchange(request("t/a", mid=1), b"\x40\x02\x00\x02\xff", request("t/b", mid=3))
    assert [(answer.type, answer.mid) for answer in answers] == [(RST, 2), (ACK, 1), (ACK, 3)]
    assert len(driver.stored) == 2


@pytest.mark.parametrize("code", [5, 6, 7, 31])
def test_other_methods(code: int) -> None:
    assert is_ack(Driver().ask("t/a", code), "4.05")


# ---- options (RFC 7252, 5.4)


@pytest.mark.parametrize(
    "option",
    [
        (9, b""),  # OSCORE
        (1, b"123456789"),  # If-Match
        (5, b"x"),  # If-None-Match
        (65_001, b"x"),
        (URI_PORT, b"abc"),  # too long
        (URI_HOST, b""),  # too short
        (ACCEPT, b"abc"),
        (URI_HOST, b"\xff"),  # not UTF-8
        (11, b"\xff"),
        (15, b"\xc0"),
        (BLOCK1, b"abcd"),
    ],
)
@pytest.mark.parametrize("method", [POST, GET])
def test_a_critical_option_not_understood(option: tuple[int, bytes], method: int) -> None:
    driver = Driver()
    assert is_ack(driver.ask("t/a", method, options=(option,)), "4.02")
    assert driver.exchange(request("t/a", method, type=NON, mid=2, options=(option,))) == []
    assert driver.stored == []


def test_a_critical_option_given_twice() -> None:
    option = (URI_PORT, b"\x16\x33")
    assert is_ack(Driver().ask("t/a", options=(option, option)), "4.02")
    assert is_ack(Driver().ask("t/a", options=(option,)), "2.01")


@pytest.mark.parametrize(
    "option", [(258, b"\x1a\x1a"), (OBSERVE, b"abcd"), (12, b"abc"), (65_000, b"x" * 300), (60, b"12345")]
)
def test_an_elective_option_not_understood_is_passed_over(option: tuple[int, bytes]) -> None:
    driver = Driver(last=Message(address="a", id="1"))
    assert is_ack(driver.ask("t/a", options=(option,)), "2.01")
    answer = driver.get("t/a", mid=2, options=(option,))
    assert dotted(answer.code) == "2.05"
    assert OBSERVE not in options_of(answer)


@pytest.mark.parametrize("option", [(35, b"coap://x/"), (39, b"coap")])
def test_this_is_no_proxy(option: tuple[int, bytes]) -> None:
    assert is_ack(Driver().ask("t/a", options=(option,)), "5.05")


# ---- admission


def test_the_first_datagrams_wait_until_peers_are_let_in() -> None:
    driver = Driver(admit=False)
    assert driver.receive(request("t/a", mid=1)) == []
    assert driver.receive(request("t/a", GET, mid=2)) == []
    effects = driver.endpoint.completed(driver.asked, Outcome(value=Principal(name="")), now_ms=driver.now_ms)
    assert [type(effect) for effect in effects] == [Publish, Call]
    driver.complete(list(effects))
    assert [dotted(answer.code) for answer in driver.sent()] == ["2.01", "4.04"]


def test_peers_that_are_not_let_in() -> None:
    driver = Driver(admit=False)
    assert driver.receive(request("t/a", mid=1)) == []
    outcome = refusing(Cause.UNAUTHENTICATED)
    assert driver.endpoint.completed(driver.asked, outcome, now_ms=driver.now_ms) == []
    assert is_ack(driver.sent()[0], "4.01")
    assert is_ack(driver.get("t/a"), "4.01")
    assert dotted(driver.ask("t/a", type=NON).code) == "4.01"
    assert driver.exchange(bytes.fromhex("40001234"))[0].type == RST
    assert driver.exchange(b"\x40\x02\x00\x07\xff")[0].type == RST
    assert driver.stored == driver.calls == []


def test_a_question_that_could_not_be_answered_is_asked_again() -> None:
    driver = Driver(admit=False)
    assert driver.receive(*[request("t/a", mid=mid) for mid in range(400)]) == []
    driver.endpoint.completed(driver.asked, refusing(Cause.UNAVAILABLE), now_ms=driver.now_ms)
    assert [dotted(answer.code) for answer in driver.sent()] == ["5.03"] * 256
    (again,) = driver.receive(request("t/a"))
    effects = driver.endpoint.completed(again.token, DONE, now_ms=driver.now_ms)
    driver.complete(list(effects))
    assert is_ack(driver.sent()[0], "2.01")


# ---- limits


def test_too_many_requests_outstanding() -> None:
    driver = Driver({"requests_outstanding_max": 3})
    first = driver.receive(request("t/a", mid=1), request("t/x", GET, mid=2))
    second = driver.receive(request("t/a", mid=3), request("t/a", mid=4), request("t/x", GET, mid=5))
    answers = driver.sent()
    assert [(answer.mid, dotted(answer.code)) for answer in answers] == [(4, "5.03"), (5, "5.03")]
    assert options_of(answers[0])[MAX_AGE] == b"\x02"
    driver.complete(first + second)
    driver.sent()
    assert is_ack(driver.ask("t/a", mid=4), "2.01", mid=4)  # a refusal for lack of room is not remembered


def test_too_many_messages_of_one_peer() -> None:
    driver = Driver({"dedup_peer_max": 3})
    codes = [dotted(driver.ask("t/a", mid=mid).code) for mid in range(5)]
    assert codes == ["2.01"] * 3 + ["5.03"] * 2
    (answer,) = driver.exchange(request("t/a"), peer=OTHER)
    assert is_ack(answer, "2.01")
    assert is_ack(driver.ask("t/a", mid=0, token=b"new"), "2.01", mid=0, token=b"new")  # replaces what it had
    driver.now_ms += LIFETIME_MS
    assert is_ack(driver.ask("t/a", mid=9), "2.01", mid=9)


def test_a_peer_that_has_used_all_its_message_ids_reads() -> None:
    driver = Driver({"dedup_peer_max": 3}, last=Message(address="a", id="1"))
    for mid in range(3):
        driver.ask("t/a", mid=mid)
    assert is_ack(driver.get("t/a", mid=9), "5.03", mid=9)
    assert is_ack(driver.get("t/a", mid=1, token=b"new"), "2.05", mid=1, token=b"new")


def test_too_many_messages_in_total_until_they_are_sent_no_more() -> None:
    driver = Driver({"dedup_total_max": 3})
    codes = [dotted(driver.ask("t/a", mid=mid).code) for mid in range(5)]
    assert codes == ["2.01"] * 3 + ["5.03"] * 2
    driver.now_ms += 45_000
    codes = [dotted(driver.ask("t/a", mid=mid).code) for mid in range(10, 15)]
    assert codes == ["2.01"] * 3 + ["5.03"] * 2


def test_message_ids_used_again_make_room_for_themselves() -> None:
    driver = Driver({"dedup_total_max": 4})
    for n in range(20):
        assert dotted(driver.ask("t/a", mid=n % 3, token=bytes([n])).code) == "2.01"
    assert len(driver.endpoint.exchanges) <= 4


def test_too_many_peers() -> None:
    driver = Driver({"peers_max": 2})
    codes = [dotted(driver.exchange(request("t/a"), peer=(str(n), 1))[0].code) for n in range(4)]
    assert codes == ["2.01", "2.01", "5.03", "5.03"]
    (answer,) = driver.exchange(request("t/a", GET), peer=("9", 1))
    assert is_ack(answer, "5.03")
    driver.now_ms += 45_000
    (answer,) = driver.exchange(request("t/a"), peer=("9", 1))
    assert is_ack(answer, "2.01")


def test_reads_leave_nothing_behind() -> None:
    driver = Driver({"peers_max": 1, "dedup_total_max": 1})
    for n in range(10):
        (answer,) = driver.exchange(request("t/a", GET), peer=(str(n), 1))
        assert is_ack(answer, "4.04")
    assert driver.endpoint.exchanges.by_peer == {}


def test_separate_responses_beyond_their_limit_are_not_confirmable() -> None:
    driver = Driver({"requests_outstanding_max": 2})
    kinds = []
    for mid in (0, 2):
        effects = driver.receive(request("t/a", mid=mid), request("t/a", mid=mid + 1))
        assert [packet.code for packet in driver.tick(1_000)] == [0, 0]
        driver.complete(effects)
        kinds += [packet.type for packet in driver.sent()]
    assert kinds == [CON, NON, NON]  # one waits for the acknowledgement of the first one


def test_remembered_options_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adapters.coap.endpoint.plans.PLANS_MAX", 4)
    driver = Driver()
    for n in range(20):
        driver.ask(f"t/a/{n}", mid=n)
        assert len(driver.endpoint.plans.known) <= 4
    assert [message.address for message in driver.stored] == [f"a/{n}" for n in range(20)]


@pytest.mark.parametrize(
    ("principal", "reliable", "count_max"),
    [
        (Principal(name=""), False, PLANS_MAX),  # all peers of a socket
        (Principal(name=""), True, CONNECTION_PLANS_MAX),
        (Principal(name="dev1"), True, CONNECTION_PLANS_MAX),
        (Principal(name="dev1"), False, USER_PLANS_MAX),
        (Principal(name="gateway", trusted_gateway=True), False, PLANS_MAX),
        (Principal(name="gateway", trusted_gateway=True), True, PLANS_MAX),
    ],
)
def test_a_connection_and_a_user_have_fewer_options_remembered(
    principal: Principal, reliable: bool, count_max: int
) -> None:
    endpoint = CoapEndpoint(CoapOptions(exchange_lifetime_ms=0), random=Random(7), reliable=reliable)
    endpoint.admit(principal)
    most = 0
    for n in range(count_max + 1):
        (effect,) = endpoint.receive([(request(f"t/a/{n}", mid=n), PEER)], now_ms=n)
        assert isinstance(effect, Publish)
        endpoint.completed(effect.token, DONE, now_ms=n)
        most = max(most, len(endpoint.plans.known))
    assert most == count_max
    assert len(endpoint.plans.known) == 1


def test_long_options_are_not_remembered() -> None:
    driver = Driver()
    driver.ask("t/a", query=("n=" + "x" * 150, "n=" + "x" * 150))
    assert driver.endpoint.plans.known == {}
    driver.ask("t/a", query=("n=" + "x" * 200,), mid=2)
    assert len(driver.endpoint.plans.known) == 1
    assert [len(message.properties) for message in driver.stored] == [2, 1]


def test_fleeting_options_are_not_remembered() -> None:
    driver = Driver()
    for item in ("id=1", "time=1", "corr=aaaa"):
        driver.ask("t/a", query=(item,), mid=hash(item) & 0xFFFF)
    assert driver.endpoint.plans.known == {}


# ---- the factory


def test_the_factory() -> None:
    assert [(one.name, one.port, one.transport, one.tls_port) for one in FACTORY.listeners] == [
        ("coap", 5683, "udp", None),
        ("coap-tcp", 5683, "tcp", 5684),
        ("coaps", 5684, "udp", None),
    ]
    assert FACTORY.options is CoapOptions
    endpoint = FACTORY.bind(CoapOptions(), random=Random(1))
    assert endpoint.deadline_ms() is None
    assert endpoint.take_output() == []
    info, options = ConnectionInfo(peer=PEER, local=PEER), CoapOptions()
    connections = [FACTORY.connect(info, options, random=Random(1)) for _ in range(2)]
    assert connections[0] is not connections[1]


def test_an_unknown_token_is_passed_over() -> None:
    driver = Driver()
    (effect,) = driver.receive(request("t/a"))
    driver.complete([effect])
    assert driver.endpoint.completed(effect.token, DONE, now_ms=driver.now_ms) == ()
    assert len(driver.sent()) == 1


def test_an_ipv6_peer() -> None:
    driver = Driver()
    peer = ("fe80::1", 5683, 0, 2)
    effects = driver.receive(request("t/a"), request("t/b", GET, mid=2), peer=peer)
    assert [type(effect) for effect in effects] == [Publish, Call]
    assert effects[1].request == LastValue(address="b")
    driver.complete(effects)
    assert driver.stored[0].device == "fe80::1"
    assert {peer for _, peer in driver.endpoint.take_output()} == {peer}


def test_codes_are_what_the_specification_says() -> None:
    assert (dotted(CREATED), dotted(BAD_REQUEST)) == ("2.01", "4.00")
    assert decode(bytes.fromhex("40010000")).code == GET
