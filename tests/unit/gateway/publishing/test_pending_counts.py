"""Publishes wait until a queue that others fill and drain, too, has been counted: they, and no other publisher's."""

import asyncio

import pytest

from controller.api.commands import ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.publishing.routing.length_gates import LengthGate
from store.api.message import Message
from tests.support.gateway.ingest_rig import Publisher, SinglesPublisher, SinglesRig

pytestmark = pytest.mark.anyio

FULL, OTHER = 1_000, 1_001  # queues with gates


class CountedRig(SinglesRig):
    """An ingest before two queues, of which others say when they are counted, and how long they are."""

    def __init__(self, controller):
        super().__init__(controller)
        self.now_ms = 1_000
        self.counts = {}  # by queue: how often it was counted
        self.counted = {}  # by queue: what the next count finds
        self.gates = {queue: self.gate(queue) for queue in (FULL, OTHER)}
        for queue, address in ((FULL, "t/full"), (OTHER, "t/other")):
            self.router.bind(address, queue, key=queue)
            self.router.gates[queue] = self.gates[queue]
        self.know("t/1", "t/full", "t/other")

    def gate(self, queue):
        made = LengthGate(
            touched=lambda: None,
            refused=lambda _message: None,
            room=lambda: 0,
            count=lambda: self.count(queue),
            now_ms=lambda: self.now_ms,
        )
        made.limit(2, None)
        return made

    async def count(self, queue):
        self.counts[queue] = self.counts.get(queue, 0) + 1
        gate, settled = self.gates[queue], self.gates[queue].settled
        counted = self.counted[queue] = asyncio.get_running_loop().create_future()
        gate.counted(settled, await counted, 0)

    async def answer(self, queue, length):
        """Runs the turn in which a count comes back, and the next one."""
        async with asyncio.timeout(60):
            while queue not in self.counted:
                await asyncio.sleep(0)
            self.counted.pop(queue).set_result(length)
            while not self.turns:
                await asyncio.sleep(0)
        self.turn()

    def bodies(self):
        """Returns the bodies of all that is stored, each once, with the frames in flight."""
        self.log.end_all()
        return list(dict.fromkeys(self.log.bodies))


@pytest.fixture
async def rig(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(default_queues=4), now_ms=lambda: 0)
    await controller.do(CreateTopic(name="t"))
    yield CountedRig(controller)
    await controller.close()


async def test_a_queue_that_was_full_is_counted_before_it_refuses(rig):
    rig.gates[FULL].counted(rig.gates[FULL].settled, 2, 0)
    rig.now_ms += 60_000
    publisher = Publisher()
    rig.publish(publisher, 1, Message("t/full", b"1"))
    rig.turn()
    assert not rig.log.waiting
    assert not rig.ingest.idle
    await rig.answer(FULL, 0)
    rig.log.end_all()
    assert not publisher.outcomes[1].overflowed
    assert rig.ingest.idle


async def test_a_queue_that_was_empty_is_counted_before_it_takes_a_burst(rig):
    rig.gates[FULL].counted(rig.gates[FULL].settled, 0, 0)
    rig.now_ms += 60_000
    publisher = Publisher()
    rig.publish(publisher, 1, Message("t/full", b"1"), Message("t/full", b"2"))
    rig.turn()
    await rig.answer(FULL, 1)
    rig.log.end_all()
    assert list(publisher.outcomes[1].overflowed) == [1]


async def test_other_publishers_go_on_and_later_messages_of_the_same_one_stay_behind(rig):
    publisher, single, other = Publisher(), SinglesPublisher(), Publisher()
    rig.publish(publisher, 1, Message("t/full", b"1"))
    rig.single(single, Message("t/full", b"a"), b"first")
    rig.publish(other, 1, Message("t/1", b"x"))
    rig.turn()
    rig.publish(publisher, 2, Message("t/1", b"2"))
    rig.single(single, Message("t/1", b"b"), b"second")
    rig.publish(other, 2, Message("t/1", b"y"))
    rig.turn()
    assert rig.bodies() == [b"x", b"y"]
    assert list(other.outcomes) == [1, 2]
    assert not publisher.outcomes
    assert not single.answers
    await rig.answer(FULL, 0)
    assert sorted(rig.bodies()) == [b"1", b"2", b"a", b"b", b"x", b"y"]
    assert list(publisher.outcomes) == [1, 2]
    assert single.answers == [(1000, 10), (1001, 10)]
    assert rig.counts == {FULL: 1}
    assert rig.ingest.idle


async def test_a_publish_waits_for_all_its_queues_once(rig):
    publisher = Publisher()
    rig.publish(publisher, 1, Message("t/full", b"1"), Message("t/other", b"2"))
    rig.turn()
    async with asyncio.timeout(60):
        while len(rig.counted) < 2:
            await asyncio.sleep(0)
        rig.counted.pop(FULL).set_result(0)
        while not rig.gates[FULL].is_sure(0, 0):
            await asyncio.sleep(0)
    rig.now_ms += 60_000  # the other count takes so long
    assert not rig.turns
    await rig.answer(OTHER, 2)
    assert rig.bodies() == [b"1", b"2"]
    assert list(publisher.outcomes[1].overflowed) == [1]
    assert rig.counts == {FULL: 1, OTHER: 1}


async def test_a_gate_that_is_sure_holds_up_nothing(rig):
    rig.gates[FULL].limit(5, None)
    rig.gates[FULL].counted(rig.gates[FULL].settled, 1, 0)
    rig.gates[OTHER].counted(rig.gates[OTHER].settled, 2, 0)
    publisher = Publisher()
    rig.publish(publisher, 1, Message("t/full", b"1"))
    rig.publish(publisher, 2, Message("t/other", b"2"))
    rig.turn()
    rig.log.end_all()
    assert [list(outcome.overflowed) for outcome in publisher.outcomes.values()] == [[], [0]]
    assert not rig.counts
