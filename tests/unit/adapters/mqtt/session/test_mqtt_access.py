"""A client of MQTT hears of each thing that it may not do."""

import pytest

from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from adapters.mqtt.codec.properties import Properties
from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port import adapter as port
from gateway.port.adapter import Close, Outcome
from gateway.port.sessions import OpenedSession
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import Driver

DENIED = 0x87
NO = Refusal(Cause.FORBIDDEN, "no")


def principal(*filters):
    rules = (AccessRule(effect="allow", filters=filters),) if filters else ()
    access = AccessRules(AccessConfig(default="deny", rules=rules)).access(Identity(name="ada"))
    return Principal(name="ada", permissions=Permissions(Identity(name="ada", protocol="mqtt"), access))


def connected(version=5, who=None, **fields):
    driver = Driver(version)
    driver.principal = Outcome(value=who or principal("a/#"))
    driver.connect(**fields)
    return driver


def subscribe(driver, *patterns):
    requests = tuple(SubscriptionRequest(pattern=pattern, qos=1) for pattern in patterns)
    (suback,) = [one for one in driver.send(Subscribe(packet_id=7, requests=requests)) if isinstance(one, Suback)]
    return list(suback.codes)


@pytest.mark.parametrize(("version", "denied"), [(5, DENIED), (4, 0x80)])
def test_a_filter_of_which_nothing_may_be_read(version, denied):
    driver = connected(version)
    assert subscribe(driver, "b/#", "#", "a/+", "$SYS/#") == [denied, 1, 1, denied]
    assert [one.pattern for one in driver.take(port.Subscribe)] == ["#", "a/+"]


def test_the_filter_of_a_shared_subscription_is_what_is_looked_at():
    driver = connected()
    (suback,) = driver.send(Subscribe(packet_id=7, requests=(SubscriptionRequest(pattern="$share/g/b/#", qos=1),)))
    assert list(suback.codes) == [DENIED]


def test_rights_that_come_later_count_for_the_next_filter():
    who = principal("a/#")
    driver = connected(who=who)
    assert subscribe(driver, "b/#") == [DENIED]
    who.permissions.access = principal("b/#").permissions.access
    assert subscribe(driver, "b/#") == [1]


def publish(driver, *qualities):
    for number, qos in enumerate(qualities, 1):
        driver.send(Publish(topic="b", payload=b"", qos=qos, packet_id=number if qos else None))
    return driver.take(port.Publish)


def test_messages_that_are_denied_are_refused_one_by_one():
    driver = connected()
    packets = [
        Publish(topic=topic, payload=b"", qos=qos, packet_id=number)
        for number, (topic, qos) in enumerate([("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 1)], 1)
    ]
    driver.send(*packets)
    (effect,) = driver.take(port.Publish)
    said = driver.complete(effect, Outcome(refused={1: NO, 3: NO}))
    codes = {one.packet_id: one.code for one in said if isinstance(one, Puback | Pubrec)}
    assert codes == {1: 0, 2: DENIED, 3: 0, 4: DENIED, 5: 0}
    assert not driver.take(Close)


def test_a_qos_0_message_that_is_denied_ends_nothing_in_5_0():
    driver = connected()
    (effect,) = publish(driver, 0)
    assert driver.complete(effect, Outcome(refused={0: NO})) == []
    assert not driver.take(Close)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_3_1_1_closes(qos):
    driver = connected(4)
    (effect,) = publish(driver, qos)
    assert driver.complete(effect, Outcome(refused={0: NO})) == []
    assert driver.take(Close)


def test_a_will_that_is_denied_is_no_connection():
    driver = Driver(5)
    driver.opened = Outcome(error=NO)
    connack = driver.connect()
    assert isinstance(connack, Connack)
    assert connack.code == DENIED
    assert driver.take(Close)


def test_a_retained_message_that_may_not_be_read_any_more_is_not_sent_again():
    first = Driver(5)
    first.principal = Outcome(value=principal("a/#"))
    first.retained = [Message("a/kept", b"kept", qos=1, retain=True)]
    first.connect(clean=False, properties=Properties(session_expiry_s=1_000))
    sent = first.send(Subscribe(packet_id=7, requests=(SubscriptionRequest(pattern="a/#", qos=1),))) + first.tick(1)
    assert [one.topic for one in sent if isinstance(one, Publish)] == ["a/kept"]
    first.lose()
    state = next(one.state for one in reversed(first.saved) if one.state is not None)
    exchanges = next(one.exchanges for one in reversed(first.saved) if one.exchanges is not None)
    for filters, expected in ((("a/#",), ["a/kept"]), (("b/#",), [])):
        driver = Driver(5)
        driver.principal = Outcome(value=principal(*filters))
        driver.opened = Outcome(value=OpenedSession(present=True, state=state, exchanges=exchanges))
        said = driver.send(
            Connect(version=5, client_id="c1", clean=False, properties=Properties(session_expiry_s=1_000))
        ) + driver.tick(1)
        assert [one.topic for one in said if isinstance(one, Publish)] == expected
