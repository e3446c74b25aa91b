"""Every state of an AUTH exchange x every packet: an answer, or the end in MQTT's words; nobody gets in unproven."""

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Pingreq,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.codec.reason import ReasonCode
from adapters.mqtt.connecting.phases import Phase
from gateway.port.adapter import Authenticate
from gateway.port.sessions import OpenSession
from gateway.security.scram import MECHANISM
from tests.support.mqtt.mqtt_scram import ScramDriver, auth
from tests.support.process.examples import examples

STATES = ("challenged", "asking", "connected", "challenged again", "asking again")
WORDS = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.sampled_from([b"n,,n=user,r=abc", b"y,,n=user,r=abc", b"n,a=x,n=user,r=abc", b"c=biws,r=abc,p=AAAA", b"e=x"]),
)
PACKETS = st.one_of(
    st.builds(auth, WORDS, st.sampled_from([0x00, 0x18, 0x19, 0x80]), st.sampled_from([MECHANISM, "PLAIN", "", None])),
    st.just(Pingreq()),
    st.just(Publish(topic="a", payload=b"")),
    st.just(Puback(packet_id=1)),
    st.just(Pubrel(packet_id=1)),
    st.just(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern="a"),))),
    st.just(Disconnect()),
    st.just(Connect(version=5, client_id="c1")),
    st.just(Connack()),
)


def in_state(state):
    """Brings a connection to a state, and returns it."""
    driver = ScramDriver()
    client = driver.client()
    if "again" in state or state == "connected":
        driver.join()
        if state == "connected":
            return driver
        packets = driver.send(auth(client.get_client_first().encode(), 0x19))
    else:
        packets = driver.begin(client)
    if "asking" in state:
        driver.held_back = True
        driver.prove(client, packets[0])
    return driver


@settings(deadline=None, max_examples=examples(300))
@given(st.sampled_from(STATES), st.lists(PACKETS, min_size=1, max_size=4), st.integers(1, 40))
def test_every_state_and_every_packet(state, packets, cut):
    driver = in_state(state)
    known = driver.asked is not None
    data = b"".join(encode(packet, 5) for packet in packets)
    for at in range(0, len(data), cut):
        driver.feed(data[at : at + cut])
    answers = driver.out()
    if not known:
        assert driver.asked is None, "no words here prove anything"
        assert driver.adapter.phase is not Phase.CONNECTED
        assert all(isinstance(one, Auth | Connack) for one in answers)
    for packet in answers:
        if isinstance(packet, Auth):
            assert packet.code == ReasonCode.CONTINUE_AUTHENTICATION  # MQTT-4.12.0-2
            assert packet.properties.authentication_method == MECHANISM  # MQTT-4.12.0-5
        if isinstance(packet, Connack | Disconnect):
            assert packet.code >= 0x80
            assert driver.closed is not None  # MQTT-4.12.0-4, 4.12.1-2
    asking = [call for call in driver.effects if isinstance(getattr(call, "request", None), Authenticate)]
    assert len(asking) <= 1, "one exchange at a time"
    assert driver.calls(OpenSession) == []
    driver.lose()


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_cut_anywhere_the_exchange_is_the_same(data):
    driver = ScramDriver()
    client = driver.client()
    (challenge,) = driver.begin(client)
    client.set_server_first(challenge.properties.authentication_data.decode())
    words = encode(auth(client.get_client_final().encode()), 5)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(words) - 1), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(words)], strict=True):
        driver.feed(words[start:end])
    (connack,) = driver.out()
    client.set_server_final(connack.properties.authentication_data.decode())
