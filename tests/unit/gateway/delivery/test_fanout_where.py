"""Conditions of subscriptions: live, catching up, each subscription its own, asked once for all."""

import pytest

from gateway.delivery.lanes import Subscriber
from gateway.domain.errors import Refusal
from gateway.domain.sql92 import Where
from gateway.port.adapter import SubscriptionId
from store.api.message import Message
from store.format.frame import LogOffset, Position
from tests.support.gateway.fanout_rig import FanoutRig, Receiver

pytestmark = pytest.mark.anyio


def join(rig, *asked, credit=1 << 30, start=None):
    """Returns a subscriber with subscriptions (pattern, where)."""
    receiver = Receiver(credit)
    subscriber = Subscriber(receiver)
    for number, (pattern, where) in enumerate(asked):
        rig.fanout.subscribe(subscriber, SubscriptionId(number), pattern, start, where=where)
    return subscriber, receiver


def messages(count):
    return [Message("a/b", b"%d" % n, qos=n % 3) for n in range(count)]


async def test_only_what_passes_is_delivered():
    rig = FanoutRig()
    _, receiver = join(rig, ("a/+", "qos = 1"))
    _, plain = join(rig, ("a/+", None))
    rig.log.write(*messages(6))
    assert receiver.bodies == [b"1", b"4"]
    assert plain.bodies == [b"%d" % n for n in range(6)]


async def test_each_subscription_has_its_own():
    rig = FanoutRig()
    _, receiver = join(rig, ("a/+", "qos = 1"), ("a/b", "qos > 0"), ("#", "FALSE"))
    rig.log.write(*messages(3))
    assert receiver.got == [(b"1", (0, 1)), (b"2", (1,))]


async def test_catching_up_asks_too_and_goes_on_where_it_stopped():
    rig = FanoutRig()
    for n in range(7):
        rig.log.write(*messages(6)[n % 6 :])
    expected = [m.body for n in range(7) for m in messages(6)[n % 6 :] if m.qos == 2]
    subscriber, receiver = join(rig, ("#", "qos = 2"), credit=2, start=(Position(LogOffset(0), 0),))
    await rig.settle()
    assert receiver.bodies == expected[:2]
    receiver.credit = 1 << 30
    rig.fanout.wake(subscriber)
    await rig.settle()
    assert receiver.bodies == expected
    assert not subscriber.behind


async def test_an_expression_is_asked_once_a_message(monkeypatch):
    rig, asked = FanoutRig(), []
    real = Where.matches
    monkeypatch.setattr(Where, "matches", lambda self, message: asked.append(message) or real(self, message))
    for _ in range(5):
        join(rig, ("#", "qos = 1"))
    rig.log.write(*messages(3))
    assert len(asked) == 3


async def test_a_subscription_that_is_replaced_forgets_its_condition():
    rig = FanoutRig()
    subscriber, receiver = join(rig, ("#", "FALSE"))
    rig.fanout.subscribe(subscriber, SubscriptionId(0), "#", None)
    rig.log.write(*messages(2))
    assert receiver.bodies == [b"0", b"1"]
    rig.fanout.unsubscribe(subscriber, SubscriptionId(0))
    assert not subscriber.conditions


async def test_a_bad_expression_changes_nothing():
    rig = FanoutRig()
    with pytest.raises(Refusal):
        join(rig, ("#", "qos >"))
    assert rig.fanout.subscriber_count == 0
