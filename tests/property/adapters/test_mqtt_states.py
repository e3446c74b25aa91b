"""Every phase of a connection x every packet, right or with a wrong flag: the answer that the specification names.

What is said, and whether the connection goes on, is in one table for each version. Nothing raises, and nothing is said
behind the end.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packet_type import FLAGS, PacketType
from adapters.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
    Unsuback,
    Unsubscribe,
    Will,
)
from gateway.port.adapter import Call
from gateway.port.sessions import OpenSession
from tests.support.mqtt.mqtt_driver import Driver, packets_in
from tests.support.mqtt.mqtt_scram import ScramDriver, auth
from tests.support.mqtt.packet_strategies import packets_of_5, publishes
from tests.support.process.examples import examples

Answers = dict[type[Any], frozenset[str]]


def said(*answers: str) -> frozenset[str]:
    """Returns the allowed answers: packets with codes; "" is nothing, "end" a connection closed without a word."""
    return frozenset(answers)


MALFORMED, FORBIDDEN = "Disconnect 81", "Disconnect 82"
# A message that is right may still be refused: its topic, its alias, its payload, an identifier that is no client's.
_REFUSED = {"Disconnect 90", "Disconnect 94", FORBIDDEN}

CONNECTED_5: Answers = {
    Connect: said(FORBIDDEN),  # MQTT-3.1.0-2
    Connack: said(FORBIDDEN),
    Publish: said("", "Puback 00", "Puback 99", "Puback 90", "Pubrec 00", "Pubrec 99", "Pubrec 90", *_REFUSED),
    Puback: said(""),
    Pubrec: said("Pubrel 92", ""),  # no packet where the client has refused the message
    Pubrel: said("Pubcomp 92"),
    Pubcomp: said(""),
    Subscribe: said("Suback", FORBIDDEN),  # No Local on a shared one
    Suback: said(FORBIDDEN),
    Unsubscribe: said("Unsuback"),
    Unsuback: said(FORBIDDEN),
    Pingreq: said("Pingresp"),
    Pingresp: said(FORBIDDEN),
    Disconnect: said("end", FORBIDDEN),  # an expiry for a session that was to have none
    Auth: said(FORBIDDEN),  # MQTT-4.12.0-7
}
CONNECTED_4: Answers = {
    **dict.fromkeys(CONNECTED_5, said("end")),
    Publish: said("", "end", "Puback 00", "Pubrec 00"),
    Puback: said(""),
    Pubrec: said("Pubrel 00"),
    Pubrel: said("Pubcomp 00"),
    Pubcomp: said(""),
    Subscribe: said("Suback"),
    Unsubscribe: said("Unsuback"),
    Pingreq: said("Pingresp"),
}
AWAITING_5: Answers = {
    **dict.fromkeys(CONNECTED_5, said("end")),  # MQTT-3.1.0-1
    Connect: said(*(f"Connack {code:02x}" for code in (0x00, 0x8C, 0x90, 0x99)), "Auth 18", "end"),  # if none fits
}
AWAITING_4: Answers = {**AWAITING_5, Connect: said("Connack 00", "Connack 02", "end")}
CHALLENGED: Answers = {
    **dict.fromkeys(CONNECTED_5, said("Connack 82")),  # MQTT-3.1.2-30
    Auth: said("Connack 82", "Connack 86", "Connack 87", "Auth 18"),
    Disconnect: said("end"),
}
PROVING_AGAIN: Answers = {  # all goes on meanwhile (4.12.1)
    **CONNECTED_5,
    Auth: said(FORBIDDEN, "Disconnect 87"),
}
CLOSED: Answers = dict.fromkeys(CONNECTED_5, said(""))


RIGHT = (
    Connect(version=5, client_id="c1"),
    Connack(),
    Publish(topic="t"),
    *(kind(packet_id=1) for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)),
    Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="t"),)),
    Suback(packet_id=1, codes=(0,)),
    Unsubscribe(packet_id=1, patterns=("t",)),
    Pingreq(),
    Pingresp(),
    Disconnect(),
    Auth(),
)


def awaiting(version: int) -> Driver:
    return Driver(version)


def connected(version: int) -> Driver:
    driver = Driver(version)
    driver.connect()
    return driver


def closed(version: int) -> Driver:
    driver = connected(version)
    driver.feed(encode(Disconnect(), version))
    return driver


def challenged(_version: int) -> Driver:
    driver = ScramDriver()
    driver.begin(driver.client())
    return driver


def proving_again(_version: int) -> Driver:
    driver = ScramDriver()
    driver.join()
    driver.send(auth(driver.client().get_client_first().encode(), 0x19))
    return driver


PHASES: dict[tuple[str, int], tuple[Callable[[int], Driver], Answers]] = {
    ("awaiting", 5): (awaiting, AWAITING_5),
    ("awaiting", 4): (awaiting, AWAITING_4),
    ("challenged", 5): (challenged, CHALLENGED),
    ("connected", 5): (connected, CONNECTED_5),
    ("connected", 4): (connected, CONNECTED_4),
    ("proving again", 5): (proving_again, PROVING_AGAIN),
    ("closed", 5): (closed, CLOSED),
    ("closed", 4): (closed, CLOSED),
}
_ids = st.integers(1, 65_535)
_requests = st.builds(SubscriptionRequest, pattern=st.sampled_from(["t", "+", "#/", "", "t/#"]), qos=st.integers(0, 2))
packets_of_4 = st.one_of(
    st.builds(
        Connect,
        version=st.just(4),
        client_id=st.sampled_from(["", "c"]),
        clean=st.booleans(),
        will=st.none() | st.just(Will(topic="w", payload=b"")),
        username=st.just("u"),
        password=st.none() | st.just(b"p"),
    ),
    st.builds(Connack, code=st.integers(0, 5)),
    publishes(4),
    *(st.builds(kind, packet_id=_ids) for kind in (Puback, Pubrec, Pubrel, Pubcomp, Unsuback)),
    st.builds(Subscribe, packet_id=_ids, requests=st.lists(_requests, min_size=1, max_size=3).map(tuple)),
    st.builds(Suback, packet_id=_ids, codes=st.just((0,))),
    st.builds(Unsubscribe, packet_id=_ids, patterns=st.just(("t", "x"))),
    st.sampled_from([Pingreq(), Pingresp(), Disconnect(), Auth()]),
)


def answer(driver: Driver, data: bytes) -> str:
    """Returns the answer to some bytes, in the table's words; nothing is said behind the end."""
    over = driver.closed is not None
    driver.feed(data)
    packets = driver.out() + driver.store() + driver.tick()
    ended = driver.closed is not None
    assert len(packets) <= 1, packets
    if ended:
        driver.effects.clear()
        driver.feed(b"\xc0\x00")
        assert (driver.out(), driver.effects) == ([], [])
    if not packets:
        return "end" if ended and not over else ""
    (packet,) = packets
    name = type(packet).__name__
    fatal = name == "Disconnect" or (name == "Connack" and packet.code)
    assert bool(fatal) == ended
    return name if isinstance(packet, Suback | Unsuback | Pingresp) else f"{name} {packet.code:02x}"


@pytest.mark.parametrize(("phase", "version"), PHASES)
@settings(deadline=None, max_examples=examples(60))
@given(data=st.data())
def test_every_phase_and_every_packet(phase, version, data):
    begin, answers = PHASES[phase, version]
    packet = data.draw(packets_of_5 if version == 5 else packets_of_4)
    raw = encode(packet, version) if version == 5 or not isinstance(packet, Auth) else b"\xf0\x00"
    assert answer(begin(version), raw) in answers[type(packet)]


@pytest.mark.parametrize(("phase", "version"), PHASES)
def test_every_phase_and_every_wrong_flag(phase, version):
    begin, _ = PHASES[phase, version]
    expected = {"awaiting": "end", "challenged": "Connack 81", "closed": ""}.get(phase, MALFORMED)
    if version < 5 and phase == "connected":
        expected = "end"
    for packet in RIGHT:
        raw = encode(packet, version)
        kind = PacketType(raw[0] >> 4)
        right = set(range(16)) - {6, 7, 8, 9, 14, 15} if kind is PacketType.PUBLISH else {FLAGS[kind]}
        for flags in set(range(16)) - right:
            assert answer(begin(version), bytes((kind << 4 | flags,)) + raw[1:]) == expected, (kind, flags)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("gate", ["authenticating", "opening"])
@settings(deadline=None, max_examples=examples(40))
@given(data=st.data())
def test_while_the_gateway_thinks_everything_waits(gate, version, data):
    packet = data.draw(packets_of_5 if version == 5 else packets_of_4)
    raw = encode(packet, version) if version == 5 or not isinstance(packet, Auth) else b"\xf0\x00"
    driver = Driver(version)
    held = driver.answer_effect
    driver.answer_effect = lambda effect: None if gate == "authenticating" else _unless_opening(held, effect)
    driver.feed(encode(Connect(version=version, client_id="c1"), version))
    driver.feed(raw)
    assert driver.out() == []
    assert driver.closed is None
    driver.answer_effect = held
    effects, driver.effects = driver.effects, []
    driver.act(effects)
    raw_out = driver.adapter.take_output()
    connack, *rest = packets_in(raw_out, version)
    assert connack == Driver(version).connect()
    again = Driver(version)
    again.connect()
    again.feed(raw)
    assert rest == again.out()
    assert driver.closed == again.closed
    assert driver.store() == again.store()


def _unless_opening(held: Callable[[Any], Any], effect: Any) -> Any:
    return None if isinstance(effect, Call) and isinstance(effect.request, OpenSession) else held(effect)
