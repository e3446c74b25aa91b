"""One bridge at work, over a link and a store that the test holds in its hands."""

import asyncio
import random

import pytest

from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connack, Puback, Publish, Pubrec, Suback
from gateway.bridges import bridge as module
from gateway.bridges.bridge import Bridge
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.upstream_stream import UpstreamError
from gateway.domain.errors import Cause, Refusal
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import Outcome
from gateway.port.marks import Fence
from store.base.clock import now_ms
from tests.support.mqtt.upstream_broker import Broker
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class Wire:
    """A link whose other end the test is."""

    def __init__(self, broker):
        self.broker = broker
        self.incoming = asyncio.Queue()
        self.sent = b""
        self.reads = 0  # that were asked for
        self.closed = False

    async def read(self):
        self.reads += 1
        data = await self.incoming.get()
        if not data:
            raise UpstreamError("cut")
        return data

    async def write(self, data):
        self.sent += data

    async def close(self):
        self.closed = True

    def say(self, *packets):
        for one in packets:
            self.incoming.put_nowait(encode(one, 5))

    def publish(self, *ids, qos=1):
        self.say(*(Publish(topic="a/b", payload=str(one).encode(), qos=qos, packet_id=one) for one in ids))

    def heard(self, packet):
        return encode(packet, 5) in self.sent

    def cut(self):
        self.incoming.put_nowait(b"")


class BridgeRig:
    def __init__(self):
        self.broker = Broker(receive_maximum=4)
        self.wires = []
        self.present = False
        self.refuse_dials = 0
        self.asked = []  # of the store: publisher, effect
        self.stored = []
        self.answer = None  # the store's answer; None: not yet
        self.crowded = False
        config = BridgeConfig(url="mqtt://upstream", reconnect_min_s=0.01, reconnect_max_s=0.02)
        self.bridge = Bridge(
            "up",
            config,
            lambda: self.broker.bridge,
            dial=self.dial,
            store=self.store,
            crowded=lambda: self.crowded,
            now_ms=now_ms,
            chance=random.Random(1),
        )
        self.figures = self.bridge.figures

    async def dial(self):
        if self.refuse_dials:
            self.refuse_dials -= 1
            raise UpstreamError("refused")
        wire = Wire(self.broker)
        self.wires.append(wire)
        wire.say(Connack(session_present=self.present), Suback(packet_id=1, codes=(2,)))
        return wire

    def store(self, publisher, effect, size_bytes):
        self.asked.append((publisher, effect))
        if self.answer is not None:
            asyncio.get_running_loop().call_soon(self.done, self.answer)

    def done(self, outcome):
        publisher, effect = self.asked[-1]
        if outcome.error is None:
            self.stored += [int(m.body) for n, m in enumerate(effect.messages) if n not in outcome.refused]
        publisher.published(effect.token, outcome, 0)

    @property
    def wire(self):
        return self.wires[-1]

    async def connected(self, number=1):
        await until(lambda: len(self.wires) == number and self.figures.connected)
        return self.wire


@pytest.fixture
async def rig():
    rig = BridgeRig()
    task = asyncio.ensure_future(rig.bridge.run())
    yield rig
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert all(wire.closed for wire in rig.wires)


async def test_the_acknowledgement_follows_the_store(rig):
    wire = await rig.connected()
    wire.publish(1, 2)
    await until(lambda: rig.asked)
    assert not wire.heard(Puback(packet_id=1))
    assert rig.figures.unacknowledged
    rig.answer = Outcome()
    rig.done(rig.answer)
    await until(lambda: wire.heard(Puback(packet_id=2)))
    assert rig.stored == [1, 2]
    assert rig.figures.stored == 2
    assert rig.figures.last_message_s is not None


async def test_while_the_store_refuses_nothing_is_acknowledged_and_nothing_more_is_read(rig):
    rig.answer = Outcome(error=Refusal(Cause.OVERLOAD, "the disk is full", retry_after_ms=10))
    wire = await rig.connected()
    wire.publish(1)
    await until(lambda: len(rig.asked) >= 3)
    reads = wire.reads
    wire.publish(2)  # the read that was asked for before takes it; no other is
    wire.publish(3)
    await until(lambda: len(rig.asked) >= 6)
    assert wire.reads <= reads + 1
    assert rig.figures.connected
    assert rig.figures.error == "the disk is full"
    assert b"\x40" not in wire.sent[20:]
    rig.answer = Outcome()
    await until(lambda: wire.heard(Puback(packet_id=3)))
    assert rig.stored == [1, 2, 3]
    assert rig.figures.error == ""


async def test_of_a_batch_only_what_was_refused_is_tried_again_and_all_is_acknowledged_in_order(rig):
    wire = await rig.connected()
    rig.crowded = True
    wire.publish(1, 2, 3)
    await until(lambda: rig.broker.bridge.unacknowledged == 3 or rig.asked)
    rig.crowded = False
    await until(lambda: rig.asked)
    first = len(rig.asked[0][1].messages)
    rig.done(Outcome(refused={0: Refusal(Cause.UNAVAILABLE, retry_after_ms=1)}))
    await until(lambda: len(rig.asked) == 2)
    assert [one.body for one in rig.asked[1][1].messages] == [b"1"]
    assert not wire.heard(Puback(packet_id=2))
    rig.answer = Outcome()
    rig.done(rig.answer)
    await until(lambda: wire.heard(Puback(packet_id=3)))
    places = [wire.sent.index(encode(Puback(packet_id=one), 5)) for one in (1, 2, 3)]
    assert places == sorted(places)
    assert sorted(rig.stored) == [1, 2, 3]
    assert first <= 3


async def test_what_can_never_be_stored_is_counted_and_does_not_stop_the_rest(rig):
    rig.answer = Outcome(error=Refusal(Cause.FORBIDDEN, "reserved"))
    wire = await rig.connected()
    wire.publish(1)
    await until(lambda: rig.figures.refused == {"forbidden": 1})
    rig.answer = Outcome()
    wire.publish(2)
    await until(lambda: rig.figures.stored == 1)
    assert rig.stored == [2]


async def test_a_full_bridge_reads_no_more_until_the_store_has_it(rig):
    wire = await rig.connected()
    for number in range(1, 9):  # twice the receive maximum, which no broker may
        wire.publish(number)
    await until(lambda: rig.broker.bridge.full)
    reads = wire.reads
    assert wire.reads == reads
    assert not wire.incoming.empty()
    rig.answer = Outcome()
    rig.done(rig.answer)
    await until(lambda: wire.heard(Puback(packet_id=8)))
    assert rig.stored == list(range(1, 9))


async def test_a_crowded_gateway_is_not_given_more(rig):
    rig.crowded = True
    rig.answer = Outcome()
    wire = await rig.connected()
    wire.publish(1)
    await until(lambda: rig.broker.bridge.unacknowledged == 1)
    assert not rig.asked
    rig.crowded = False
    await until(lambda: wire.heard(Puback(packet_id=1)))


async def test_it_connects_again_and_again(rig):
    rig.answer = Outcome()
    wire = await rig.connected()
    rig.refuse_dials = 3
    wire.cut()
    await until(lambda: not rig.figures.connected)
    assert rig.figures.error
    wire = await rig.connected(2)
    assert rig.figures.error == ""
    assert rig.figures.connects == 2
    wire.publish(1)
    await until(lambda: rig.stored == [1])


async def test_what_is_stored_when_the_connection_goes_is_known_again(rig):
    rig.present = True
    wire = await rig.connected()
    wire.publish(7, qos=2)
    await until(lambda: rig.asked)
    wire.cut()
    await until(lambda: not rig.figures.connected)
    assert len(rig.wires) == 1  # not connected again before the outcome is known
    rig.answer = Outcome()
    rig.done(rig.answer)
    again = await rig.connected(2)
    again.publish(7, qos=2)
    await until(lambda: again.heard(Pubrec(packet_id=7)))
    assert rig.stored == [7]


@pytest.mark.parametrize("refused", [0, 1])
async def test_what_is_stored_when_the_connection_goes_is_counted(rig, refused):
    rig.crowded = True
    wire = await rig.connected()
    wire.publish(1, 2, 3)
    await until(lambda: rig.broker.bridge.unacknowledged == 3)
    rig.crowded = False
    await until(lambda: rig.asked)
    count = len(rig.asked[0][1].messages)
    wire.cut()
    await until(lambda: not rig.figures.connected)
    rig.done(Outcome(refused=dict.fromkeys(range(refused), Refusal(Cause.UNAVAILABLE))))
    await until(lambda: len(rig.wires) == 2)
    assert rig.figures.stored == len(rig.stored) == count - refused
    assert (rig.figures.last_message_s is not None) == (count > refused)


async def test_what_was_not_stored_when_the_connection_went_comes_again(rig):
    rig.present = True
    wire = await rig.connected()
    wire.publish(7, qos=2)
    await until(lambda: rig.asked)
    wire.cut()
    await until(lambda: not rig.figures.connected)
    rig.done(Outcome(error=Refusal(Cause.UNKNOWN, "who knows")))
    again = await rig.connected(2)
    rig.answer = Outcome()
    again.publish(7, qos=2)
    await until(lambda: again.heard(Pubrec(packet_id=7)))
    assert rig.stored == [7]


@pytest.mark.parametrize("in_flight", [False, True])
async def test_of_a_batch_what_is_stored_when_the_connection_goes_is_known_again(rig, in_flight):
    rig.present = rig.crowded = True
    wire = await rig.connected()
    wire.publish(7, 8, 9, qos=2)
    await until(lambda: rig.broker.bridge.unacknowledged == 3)
    rig.crowded = False
    await until(lambda: rig.asked)
    some = Outcome(refused={1: Refusal(Cause.UNAVAILABLE, "no master", retry_after_ms=60_000)})
    if not in_flight:
        rig.done(some)
        await until(lambda: rig.figures.error)
    wire.cut()
    await until(lambda: not rig.figures.connected)
    if in_flight:
        rig.done(some)
    again = await rig.connected(2)
    rig.answer = Outcome()
    again.publish(7, 8, 9, qos=2)
    await until(lambda: again.heard(Pubrec(packet_id=9)))
    assert again.heard(Pubrec(packet_id=7))
    assert again.heard(Pubrec(packet_id=8))
    assert rig.stored == [7, 9, 8]


async def test_stopping_acknowledges_what_is_stored_and_says_good_bye():
    rig = BridgeRig()
    task = asyncio.ensure_future(rig.bridge.run())
    wire = await rig.connected()
    wire.publish(1)
    await until(lambda: rig.asked)
    task.cancel()
    await until(lambda: not rig.figures.connected)
    rig.done(Outcome())
    await asyncio.gather(task, return_exceptions=True)
    assert wire.heard(Puback(packet_id=1))
    assert wire.sent.endswith(b"\xe0\0")
    assert wire.closed
    assert not rig.figures.here


async def test_a_late_owner_acknowledges_nothing_and_its_connection_ends():
    rig = BridgeRig()
    rig.answer = Outcome(error=OwnershipLost("bridge/up"))
    fence = Fence(b"n" * 16, 7)
    task = asyncio.ensure_future(rig.bridge.run(fence))
    wire = await rig.connected()
    wire.publish(1)
    with pytest.raises(OwnershipLost):
        await task
    assert [effect.fence for _, effect in rig.asked] == [fence]
    assert wire.closed
    assert b"\x40" not in wire.sent[20:]
    assert (rig.figures.here, rig.figures.refused) == (False, {})


async def test_an_upstream_that_does_not_read_is_left(rig, monkeypatch):
    monkeypatch.setattr(module, "WRITE_S", 0.05)
    rig.answer = Outcome()
    wire = await rig.connected()
    wire.write = lambda _data: asyncio.Event().wait()
    wire.publish(1)
    await rig.connected(2)
    assert wire.closed


async def test_malformed_bytes_end_the_connection_and_nothing_else(rig):
    rig.answer = Outcome()
    wire = await rig.connected()
    wire.incoming.put_nowait(b"\x36\x07\0\x03a/b\0\x01")
    wire = await rig.connected(2)
    wire.publish(1)
    await until(lambda: rig.stored == [1])
