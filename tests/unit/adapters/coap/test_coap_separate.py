"""Confirmable responses in messages of their own, one to an endpoint in flight at a time (RFC 7252, 4.7 and 5.2.2)."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from adapters.coap.codec.registry import ACK, CON, GET, NOT_ACCEPTABLE, OBSERVE, RST
from adapters.coap.codec.wire import Packet, encode
from store.api.message import Message
from tests.support.coap.coap_driver import OTHER, PEER, Driver, request


def tokens(packets: Sequence[Packet]) -> list[tuple[int, bytes]]:
    return [(packet.type, packet.token) for packet in packets]


def slow(driver: Driver, *names: bytes, peer: tuple[Any, ...] = PEER) -> list[Packet]:
    """Sends a request for each token, stores them too late for an acknowledgement, and returns what is sent then."""
    effects = driver.receive(*[request("t/x", mid=name[0], token=name) for name in names], peer=peer)
    assert {packet.type for packet in driver.tick(1_000)} == {ACK}
    driver.complete(effects)
    return driver.sent()


def settle(driver: Driver, packet: Packet, kind: int = ACK, peer: tuple[Any, ...] = PEER) -> list[Packet]:
    return driver.exchange(encode(Packet(type=kind, code=0, mid=packet.mid)), peer=peer)


def watching(driver: Driver, *names: bytes) -> None:
    for name in names:
        driver.last = Message(address=name.decode(), body=b"0", id="0")
        path = f"t/{name.decode()}"
        driver.exchange(request(path, GET, mid=name[0], token=name, query=("each=true",), options=((OBSERVE, b""),)))


def tell(driver: Driver, name: str, sub: int) -> list[Packet]:
    return driver.deliver(Message(address=name, body=b"1", id=f"{name}-1"), sub=sub)


@pytest.mark.parametrize("kind", [ACK, RST])
def test_separate_responses_come_one_after_the_other(kind: int) -> None:
    driver = Driver()
    sent = slow(driver, b"1", b"2", b"3")
    assert tokens(sent) == [(CON, b"1")]
    assert tokens(sent := settle(driver, sent[0], kind)) == [(CON, b"2")]
    assert tokens(slow(driver, b"4")) == []
    assert tokens(sent := settle(driver, sent[0], kind)) == [(CON, b"3")]
    assert tokens(sent := settle(driver, sent[0], kind)) == [(CON, b"4")]
    assert settle(driver, sent[0], kind) == []
    assert tokens(slow(driver, b"5")) == [(CON, b"5")]


def test_a_response_to_another_endpoint_does_not_wait() -> None:
    driver = Driver()
    assert tokens(slow(driver, b"1")) == [(CON, b"1")]
    assert tokens(slow(driver, b"1", peer=OTHER)) == [(CON, b"1")]


def test_a_response_that_waits_is_sent_once_though_its_request_comes_again() -> None:
    driver = Driver()
    (first,) = slow(driver, b"1", b"2")
    (again,) = driver.exchange(request("t/x", mid=b"2"[0], token=b"2"))
    assert (again.type, again.code) == (ACK, 0)
    (second,) = settle(driver, first)
    assert settle(driver, second) == []


def test_a_response_waits_for_a_notification_and_goes_before_those_that_wait() -> None:
    driver = Driver()
    watching(driver, b"a", b"b")
    (notification,) = tell(driver, "a", 1)
    assert tell(driver, "b", 2) == []
    assert slow(driver, b"1") == []
    assert tokens(sent := settle(driver, notification)) == [(CON, b"1")]
    assert tokens(settle(driver, sent[0])) == [(CON, b"b")]


def test_a_response_is_sent_when_the_observation_it_waits_for_ends() -> None:
    driver = Driver()
    watching(driver, b"a")
    assert len(tell(driver, "a", 1)) == 1
    assert slow(driver, b"1") == []
    driver.last = None
    driver.exchange(request("t/a", GET, mid=9, token=b"a", options=((OBSERVE, b"\x01"),)))
    assert driver.endpoint.deadline_ms() == 0
    assert tokens(driver.tick(0)) == [(CON, b"1")]


def test_a_notification_waits_for_a_response() -> None:
    driver = Driver()
    watching(driver, b"a")
    (response,) = slow(driver, b"1")
    assert tell(driver, "a", 1) == []
    assert tokens(settle(driver, response)) == [(CON, b"a")]


def test_the_last_notification_of_an_endpoint_waits_for_a_response_too() -> None:
    driver = Driver()
    driver.last = Message(address="a", body=b"0", id="0", content_type="text/plain")
    driver.exchange(request("t/a", GET, mid=9, token=b"a", options=((OBSERVE, b""),)))
    (response,) = slow(driver, b"1")
    assert driver.deliver(Message(address="a", body=b"{}", id="1", content_type="application/json"), sub=1) == []
    (final,) = settle(driver, response)
    assert (final.type, final.token, final.code) == (CON, b"a", NOT_ACCEPTABLE)
    assert settle(driver, final) == []
    for _ in range(2):
        driver.tick(250_000)  # until no exchange is remembered
    assert driver.endpoint.idle


def test_for_an_endpoint_that_is_gone_each_is_tried_until_its_exchange_is_forgotten() -> None:
    driver = Driver()
    sent = tokens(slow(driver, *[b"%d" % n for n in range(9)]))
    sent += [one for _ in range(600) for one in tokens(driver.tick(1_000))]
    tried = [token for _, token in sent[::5]]
    assert sent == [(CON, token) for token in tried for _ in range(5)]
    assert 3 <= len(tried) <= 6  # 62 to 93 s each, in 247 s
    assert driver.endpoint.idle
    assert tokens(slow(driver, b"n")) == [(CON, b"n")]


def test_a_notification_is_sent_when_a_response_is_given_up() -> None:
    driver = Driver()
    watching(driver, b"a")
    slow(driver, b"1")
    assert tell(driver, "a", 1) == []
    seen = [one for _ in range(94) for one in tokens(driver.tick(1_000))]
    assert seen[:5] == [(CON, b"1")] * 4 + [(CON, b"a")]


@pytest.mark.parametrize("seed", range(20))
def test_over_a_lossy_network_every_response_comes_and_one_message_is_in_flight(seed: int) -> None:
    """The client acknowledges what reaches it; a fifth of all datagrams do not reach the other end."""
    chance, driver = Random(seed), Driver()
    watching(driver, b"a", b"b")
    waiting: list[Any] = []
    asked, answered, acknowledged = set[bytes](), set[bytes](), set[int]()
    sent: list[Packet] = []
    for step in range(300):
        if step < 40 and chance.random() < 0.5:
            token = bytes([100 + step])
            asked.add(token)
            waiting += driver.receive(request("t/x", mid=token[0], token=token))
        sent += driver.tick(1_100)
        if waiting and chance.random() < 0.7:
            driver.complete([waiting.pop(chance.randrange(len(waiting)))])
        if step < 40 and chance.random() < 0.3:
            sent += driver.deliver(Message(address="a", body=b"1", id=f"a-{step}"), sub=chance.choice((1, 2)))
        sent += driver.sent()
        open_ones = {packet.mid for packet in sent if packet.type == CON} - acknowledged
        assert len(open_ones) <= 1, "a message is in flight until its acknowledgement has come"
        for packet in sent:
            if packet.type != CON or packet.mid in acknowledged or chance.random() < 0.2:
                continue
            answered.add(packet.token)
            if chance.random() < 0.8:
                driver.receive(encode(Packet(type=ACK, code=0, mid=packet.mid)))
                acknowledged.add(packet.mid)
        sent = driver.sent()
    assert asked <= answered
    assert len(acknowledged) > len(asked)
