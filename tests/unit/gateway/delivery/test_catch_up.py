"""Catching up while subscriptions come: each gets all that it asked for."""

import asyncio

import pytest

from gateway.port.adapter import SubscriptionId
from store.api.message import Message
from store.base.errors import CorruptFrame
from store.format.frame import Position, QueueNumber
from tests.support.gateway.fanout_rig import FanoutRig, FanoutTasks, Receiver
from tests.support.gateway.memory_log import MemoryLog

pytestmark = pytest.mark.anyio

FRAMES_COUNT = 12


class QueuesLog(MemoryLog):
    """A log whose scans leave out frames of other queues, as those of stores do."""

    async def scan(self, start, queues, *, max_bytes):
        found, following = await super().scan(start, queues, max_bytes=max_bytes)
        return [frame for frame in found if queues is None or frame.rows[0]["queue"] in queues], following


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr("gateway.delivery.catch_up.RETRY_MIN_S", 0)


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("count", range(10))
async def test_a_subscription_further_back_gets_all_while_another_one_is_read(count):
    rig = FanoutRig()
    rig.join("nothing")
    for number in range(FRAMES_COUNT):
        rig.log.write(Message("a", b"a%d" % number), Message("b", b"b%d" % number))
    subscriber, receiver = rig.join("a", start=(Position(rig.log.frames[6].start, 0),))
    await turns(count)
    rig.fanout.subscribe(subscriber, SubscriptionId(1), "b", (Position(rig.log.frames[0].start, 0),))
    await rig.settle()
    assert [body for body in receiver.bodies if body[:1] == b"b"] == [b"b%d" % n for n in range(FRAMES_COUNT)]
    assert {body for body in receiver.bodies if body[:1] == b"a"} == {b"a%d" % n for n in range(6, FRAMES_COUNT)}


@pytest.mark.parametrize("count", range(6))
async def test_a_subscription_of_other_queues_gets_all_while_another_one_is_read(monkeypatch, count):
    monkeypatch.setattr("tests.support.gateway.memory_log.FRAMES_READ", 2 * FRAMES_COUNT)
    log = QueuesLog()
    rig = FanoutTasks(log, queues_of=lambda pattern: [QueueNumber(17 if pattern == "b" else 16)])
    for number in range(FRAMES_COUNT):
        log.write(Message("a", b"a%d" % number), queue=16)
        log.write(Message("b", b"b%d" % number), queue=17)
    receiver = Receiver()
    begin = (Position(log.frames[0].start, 0),)
    subscriber, _ = rig.subscribe(receiver, "a", start=begin)
    await turns(count)
    rig.fanout.subscribe(subscriber, SubscriptionId(1), "b", (Position(log.frames[20].start, 0),))
    await rig.settle()
    assert [body for body in receiver.bodies if body[:1] == b"b"] == [b"b10", b"b11"]
    assert {body for body in receiver.bodies if body[:1] == b"a"} == {b"a%d" % n for n in range(FRAMES_COUNT)}


async def test_a_subscription_further_back_gets_all_while_the_log_turns_out_to_be_damaged(monkeypatch):
    rig = FanoutRig()
    for number in range(FRAMES_COUNT):
        rig.log.write(Message("a", b"%d" % number))
    hurt, sound = rig.log.frames[6], rig.log.scan

    async def damaged(start, queues, **options):
        found, following = await sound(start, queues, **options)
        if found and found[0] is hurt:
            raise CorruptFrame(hurt.start, "body checksum", end=hurt.end)
        return (found[: found.index(hurt)], hurt.start) if hurt in found else (found, following)

    monkeypatch.setattr(rig.log, "scan", damaged)
    subscriber, receiver = rig.join("nothing", start=(Position(hurt.start, 0),))
    await turns(1)  # the scan has begun, and waits
    rig.fanout.subscribe(subscriber, SubscriptionId(1), "a", (Position(rig.log.frames[0].start, 0),))
    await rig.settle()
    assert receiver.bodies == [b"%d" % n for n in range(FRAMES_COUNT) if n != 6]


async def test_subscriptions_that_come_and_go_with_every_scan_keep_nobody_from_catching_up(monkeypatch):
    """Each scan was thrown away: a client with a topic for each of its requests read nothing any more."""
    monkeypatch.setattr("tests.support.gateway.memory_log.FRAMES_READ", 1)
    log, receiver, scans = QueuesLog(), Receiver(), []
    rig = FanoutTasks(log, queues_of=lambda pattern: [QueueNumber(16 if pattern == "a" else 17)])
    for number in range(FRAMES_COUNT):
        log.write(Message("a", b"%d" % number), queue=16)
    subscriber, _ = rig.subscribe(receiver, "a", start=(Position(log.frames[0].start, 0),))
    scan = log.scan

    async def churning(start, queues, **options):
        scans.append(start)
        assert len(scans) <= 3 * FRAMES_COUNT, "it reads, and gets no further"
        number = len(scans) + 1
        rig.fanout.subscribe(subscriber, SubscriptionId(number), f"answers/{number}", None)
        if number > 2:
            rig.fanout.unsubscribe(subscriber, SubscriptionId(number - 1))
        return await scan(start, queues, **options)

    monkeypatch.setattr(log, "scan", churning)
    await rig.settle()
    assert receiver.bodies == [b"%d" % n for n in range(FRAMES_COUNT)]
