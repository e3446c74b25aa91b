"""One Confirmable message to an observing endpoint in flight at a time (NSTART; RFC 7641, 4.5.1)."""

from typing import Any

from adapters.coap.codec.registry import ACK, CON, FETCH, GET, NON, OBSERVE, RST
from adapters.coap.codec.wire import Packet, encode
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, PEER, Driver, dotted, request

REGISTER = (OBSERVE, b"")
NAMES = ("a", "b", "c")
CHECK_MS = 60_000


def value(address: str, text: str, **fields: Any) -> Message:
    return Message(address=address, body=text.encode(), id=f"{address}-{text}", content_type="text/plain", **fields)


def watching(*names: str, each: bool = False, peer: tuple[Any, ...] = PEER, **settings: Any) -> Driver:
    """Returns an endpoint where addresses are observed by one client, each with its name as the token."""
    driver = Driver(settings)
    for mid, name in enumerate(names):
        driver.last = value(name, "0")
        query = ("each=true",) if each else ()
        data = request(f"t/{name}", GET, mid=mid, token=name.encode(), query=query, options=(REGISTER,))
        assert len(driver.exchange(data, peer=peer)) == 1
    return driver


def tell(driver: Driver, name: str, text: str) -> list[Packet]:
    driver.last = value(name, text)
    return driver.deliver(driver.last, sub=NAMES.index(name) + 1)


def settle(driver: Driver, packet: Packet, kind: int = ACK) -> list[Packet]:
    return driver.exchange(encode(Packet(type=kind, code=0, mid=packet.mid)))


def told(packets: list[Packet]) -> list[tuple[int, str]]:
    return [(packet.type, f"{packet.token.decode()} {packet.payload.decode()}") for packet in packets]


def test_commands_of_several_addresses_come_one_after_the_other() -> None:
    driver = watching(*NAMES, each=True)
    (first,) = tell(driver, "a", "1")
    assert [tell(driver, name, text) for name, text in (("b", "1"), ("a", "2"), ("b", "2"), ("c", "1"))] == [[]] * 4
    seen = told([first])
    sent = [first]
    while sent:
        (packet,) = sent
        assert packet.type == CON
        sent = settle(driver, packet)
        seen += told(sent)
    assert seen == [(CON, one) for one in ("a 1", "b 1", "c 1", "a 2", "b 2")]


def test_another_endpoint_does_not_wait() -> None:
    driver = watching("a", each=True)
    data = request("t/a", GET, token=b"a", query=("each=true",), options=(REGISTER,))
    driver.exchange(data, peer=OTHER)
    assert len(tell(driver, "a", "1")) == 2


def test_notifications_that_are_not_confirmable_go_on() -> None:
    driver = watching("a", "b", observe_confirm_every=3)
    sent = [tell(driver, name, text)[0] for text in ("1", "2", "3") for name in ("a",)]
    assert [packet.type for packet in sent] == [NON, NON, CON]
    assert told(tell(driver, "b", "1")) == [(NON, "b 1")]
    assert told(tell(driver, "b", "2")) == [(NON, "b 2")]
    assert tell(driver, "b", "3") == tell(driver, "b", "4") == []  # it is b's turn to be acknowledged
    assert told(settle(driver, sent[-1])) == [(CON, "b 4")]


def test_a_reset_and_a_deregistration_let_the_next_one_be_sent() -> None:
    driver = watching(*NAMES, each=True)
    (first,) = tell(driver, "a", "1")
    tell(driver, "b", "1")
    tell(driver, "c", "1")
    (second,) = settle(driver, first, RST)
    assert told([second]) == [(CON, "b 1")]
    driver.exchange(request("t/b", GET, mid=9, token=b"b", options=((OBSERVE, b"\x01"),)))
    assert driver.endpoint.deadline_ms() == 0
    assert told(driver.tick(0)) == [(CON, "c 1")]


def test_an_endpoint_that_does_not_acknowledge_is_forgotten_with_all_that_it_observes() -> None:
    driver = watching(*NAMES, each=True)
    (first,) = tell(driver, "a", "1")
    tell(driver, "b", "1")
    driver.deliver(value("c", "", expires_at_ms=driver.now_ms), sub=3)
    seen = [one for _ in range(200) for one in told(driver.tick(1_000))]
    assert seen == [(CON, "a 1")] * 4
    assert len(driver.endpoint.observers) == 0
    assert driver.endpoint.observers.idle
    assert settle(driver, first) == []


def test_no_more_error_responses_wait_than_an_endpoint_may_observe() -> None:
    driver = watching("a", each=True, observers_peer_max=4)
    (first,) = tell(driver, "a", "1")
    sent = []
    for mid in range(1, 11):
        driver.last = value("b", "0")
        data = request("t/b", GET, mid=mid, token=b"%d" % mid, query=("each=true",), options=(REGISTER,))
        driver.exchange(data)
        sent += driver.deliver(value("b", "", expires_at_ms=driver.now_ms), sub=mid + 1)
    assert [(packet.type, dotted(packet.code)) for packet in sent] == [(NON, "4.04")] * 6
    waited = settle(driver, first)
    for _ in range(3):
        waited += settle(driver, waited[-1])
    assert [packet.token for packet in waited] == [b"1", b"2", b"3", b"4"]
    assert settle(driver, waited[-1]) == []


def test_an_acknowledgement_counts_however_many_notifications_came_between() -> None:
    driver = watching("a", "b", observe_confirm_every=80)
    (last,) = [tell(driver, "a", str(number)) for number in range(80)][-1]
    assert last.type == CON
    for number in range(79):
        assert [packet.type for packet in tell(driver, "b", str(number))] == [NON]
    assert settle(driver, last) == []
    assert told(tell(driver, "a", "next")) == [(NON, "a next")]


def test_every_silent_filter_of_an_endpoint_is_told_that_it_is_observed() -> None:
    driver = Driver()
    for mid, token in enumerate((b"f", b"g", b"h"), 1):
        driver.exchange(request("t", FETCH, mid=mid, token=token, options=(REGISTER,), payload=b"x/#"))
    seen: list[bytes] = []
    while not seen:  # one check for all
        sent = driver.tick(CHECK_MS)
        while sent:
            seen += [packet.token for packet in sent]
            sent = settle(driver, sent[-1])
    assert seen == [b"f", b"g", b"h"]


def test_error_responses_come_one_after_the_other_too() -> None:
    driver = watching("a", "b", each=True)
    gone = [value(name, "", expires_at_ms=driver.now_ms) for name in ("a", "b")]
    (first,) = driver.deliver(gone[0], sub=1)
    assert driver.deliver(gone[1], sub=2) == []
    assert len(driver.endpoint.observers) == 0
    (second,) = settle(driver, first)
    assert [(packet.type, dotted(packet.code), packet.token) for packet in (first, second)] == [
        (CON, "4.04", b"a"),
        (CON, "4.04", b"b"),
    ]
    assert settle(driver, second) == []


def test_a_new_request_with_the_token_of_an_error_that_waits_takes_its_place() -> None:
    driver = watching("a", "b", each=True)
    (first,) = tell(driver, "a", "1")
    driver.deliver(value("b", "", expires_at_ms=driver.now_ms), sub=2)
    driver.last = value("b", "5")
    driver.exchange(request("t/b", GET, mid=9, token=b"b", options=(REGISTER,)))
    assert settle(driver, first) == []


def test_checks_make_lost_notifications_good_one_after_the_other() -> None:
    driver = watching("a")
    data = request("t/a", GET, mid=7, token=b"A", options=(REGISTER,))
    driver.exchange(data)
    assert [packet.type for packet in tell(driver, "a", "1")] == [NON, NON]
    (first,) = driver.tick(CHECK_MS)
    (second,) = settle(driver, first)
    assert told([first, second]) == [(CON, "a 1"), (CON, "A 1")]
    assert settle(driver, second) == []


def test_a_filter_waits_with_what_it_has_to_repeat() -> None:
    driver = watching("a", each=True, observe_confirm_every=2)
    driver.exchange(request("t", FETCH, mid=7, token=b"f", options=(REGISTER,), payload=b"x/#"))
    assert [packet.type for packet in driver.deliver(value("x/1", "1"), sub=2)] == [NON]
    (first,) = tell(driver, "a", "1")
    assert driver.deliver(value("x/2", "2"), sub=2) == []
    (second,) = settle(driver, first)
    assert (second.type, second.token) == (CON, b"f")
    assert [second.payload.count(b'"subject":"%s"' % name) for name in (b"x/1", b"x/2")] == [1, 1]


def test_a_peer_that_is_gone_is_sent_nothing_more() -> None:
    driver = watching("a", "b", each=True)
    (first,) = tell(driver, "a", "1")
    tell(driver, "b", "1")
    driver.endpoint.forget(PEER)
    assert driver.tick(0) == []
    assert settle(driver, first) == []
    assert len(driver.endpoint.observers) == 0
