"""Many subscribers: what one of them costs does not grow with the others."""

import pytest

from gateway.delivery.fanout import Fanout
from gateway.delivery.lanes import Subscriber
from gateway.port.adapter import SubscriptionId
from tests.support.gateway.fanout_rig import FanoutRig, Receiver, message
from tests.support.gateway.memory_log import MemoryLog

pytestmark = pytest.mark.anyio


async def test_a_subscription_more_is_no_look_at_all_others():
    asked: list[str] = []

    def queues_of(pattern):
        asked.append(pattern)
        return [16] if pattern.startswith("cmd/") else [17]

    log = MemoryLog()
    fanout = Fanout(log, queues_of=queues_of, group_of=lambda _: 0, spawn=None)
    receivers = [Receiver() for _ in range(100)]
    subscribers = [Subscriber(receiver) for receiver in receivers]
    for number, subscriber in enumerate(subscribers):
        fanout.subscribe(subscriber, SubscriptionId(1), f"cmd/{number}", None)
        log.write(message(f"cmd/{number}", b"x"))
    assert all(receiver.bodies == [b"x"] for receiver in receivers)
    assert len(asked) < 10
    for subscriber in subscribers:
        fanout.leave(subscriber)
    assert not fanout._reaches


async def test_wildcards_and_topics_that_are_new_or_gone_are_heard():
    rig = FanoutRig()
    rig.fanout = Fanout(
        rig.log,
        queues_of=lambda pattern: None if pattern == "#" else [16] if pattern == "a/#" else [17],
        group_of=lambda _: 0,
        spawn=rig.spawn,
    )
    _, other = rig.join("b")
    rig.log.write(message("a", b"1"))
    subscriber, one = rig.join("a")
    rig.log.write(message("a", b"2"))
    rig.fanout.leave(subscriber)
    rig.log.write(message("a", b"3"))
    _, every = rig.join("+")
    rig.log.write(message("a", b"4"))
    assert (other.bodies, one.bodies, every.bodies) == ([], [b"2"], [b"4"])


class Plan(tuple):
    """Counts how often it is looked through."""

    looks = 0

    def __iter__(self):
        Plan.looks += 1
        return super().__iter__()


async def test_those_who_catch_up_on_one_address_do_not_look_through_each_other():
    rig = FanoutRig()
    joined = [rig.join("t", credit=0) for _ in range(40)]
    _, other = rig.join("u", "t", credit=0)
    for n in range(30):
        rig.log.write(message("t", b"%d" % n))
    find, plans = rig.fanout._plan, {}
    rig.fanout._plan = lambda address: plans.setdefault(address, Plan(find(address)))
    for subscriber, receiver in joined:
        receiver.credit = 100
        rig.fanout.wake(subscriber)
    await rig.settle()
    assert all(receiver.got == [(b"%d" % n, (0,)) for n in range(30)] for _, receiver in joined)
    assert not other.got
    assert Plan.looks < 10
