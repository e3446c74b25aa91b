"""The node around the Raft core: what is awaited, what is written together, and what happens when things go wrong."""

import asyncio
import threading

import pytest

from controller.api.client import ControllerClosed, ControllerDamaged, TopicExists
from controller.disk.driver import OutcomeUnknown
from controller.raft import (
    ChangeKind,
    ChangeRefused,
    Membership,
    MembershipChange,
    MemoryStorage,
    NotLeader,
    ProposalDropped,
    RaftMember,
    StorageDamaged,
    StorageFailed,
    first_snapshot,
)
from tests.support.controller.controllers import Network
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_proposal_is_answered_when_it_is_applied_here():
    network = Network()
    leader = await network.lead()
    assert await leader.propose(b"one") == 1
    with pytest.raises(TopicExists):
        await leader.propose(b"no")
    assert await leader.propose(b"two") == 2
    await network.settle()
    assert [machine.words for machine in network.machines.values()] == [["one", "two"]] * 3
    await network.close()


async def test_what_comes_while_the_disk_is_busy_is_written_together():
    class Slow(MemoryStorage):
        saves = 0
        gate = threading.Event()

        def save(self, ready):
            if ready.must_sync:
                self.saves += 1
                assert self.gate.wait(10)
            super().save(ready)

    storage = Slow(first_snapshot(Membership.of(RaftMember(id=1))))
    storage.gate.set()
    network = Network(ids=())
    driver = network.add(1, storage=storage)
    driver.settle()
    await network.lead()
    storage.gate.clear()
    before = storage.saves
    first = driver.propose(b"first")
    await until(lambda: storage.saves == before + 1)
    others = [driver.propose(b"%d" % n) for n in range(100)]
    storage.gate.set()
    await asyncio.gather(first, *others)
    assert storage.saves <= before + 2
    await network.close()


async def test_a_follower_refuses_and_says_who_leads():
    network = Network()
    leader = await network.lead()
    await network.settle()
    follower = next(driver for driver in network.drivers.values() if driver is not leader)
    with pytest.raises(NotLeader) as refused:
        follower.propose(b"x")
    assert refused.value.leader == leader.status.id
    with pytest.raises(NotLeader):
        leader.propose(b"x", term=leader.status.term + 1)
    await network.close()


async def test_a_leader_that_is_cut_off_does_not_wait_for_what_its_log_may_lose():
    network = Network()
    leader = await network.lead()
    await leader.propose(b"before")
    await leader.settled()
    network.cut = {leader.status.id}
    lost = leader.propose(b"lost")
    settled = asyncio.ensure_future(leader.settled())
    other = await network.lead()
    network.cut = set()
    await network.settle(10)
    with pytest.raises(NotLeader):
        await asyncio.wait_for(settled, 10)
    with pytest.raises(OutcomeUnknown):
        await lost
    with pytest.raises(NotLeader) as refused:
        await leader.settled()
    assert refused.value.leader == other.status.id
    await network.close()


async def test_a_leader_that_is_cut_off_does_not_know_what_became_of_a_proposal():
    network = Network()
    leader = await network.lead()
    await leader.propose(b"before")
    network.cut = {leader.status.id}
    lost = leader.propose(b"lost")
    other = await network.lead()
    assert other is not leader
    await other.propose(b"after")
    for _ in range(50):  # it notices that it hears of no majority
        leader.tick()
        await asyncio.sleep(0.001)
    with pytest.raises(OutcomeUnknown):
        await lost
    network.cut = set()
    await network.settle(30)
    assert {tuple(machine.words) for machine in network.machines.values()} == {("before", "after")}
    await network.close()


async def test_a_barrier_waits_until_everything_before_is_applied_here():
    network = Network()
    leader = await network.lead()
    await network.settle()
    follower = next(driver for driver in network.drivers.values() if driver is not leader)
    await leader.propose(b"one")
    reading = asyncio.ensure_future(follower.barrier())
    while not reading.done():
        await network.settle(1)
    assert follower.applied >= reading.result()
    assert network.machines[follower.status.id].words == ["one"]
    network.cut = {follower.status.id}
    again = asyncio.ensure_future(follower.barrier())
    await network.settle(2)
    assert not again.done()
    again.cancel()
    await network.close()


async def test_a_disk_that_fails_ends_the_node_and_everything_that_waits():
    class Failing(MemoryStorage):
        broken = False

        def save(self, ready):
            if self.broken and ready.must_sync:
                raise StorageFailed("no space left")
            super().save(ready)

    storage = Failing(first_snapshot(Membership.of(RaftMember(id=1))))
    network = Network(ids=())
    driver = network.add(1, storage=storage)
    driver.settle()
    await network.lead()
    storage.broken = True
    waiting = asyncio.ensure_future(driver.until_applied(99))
    with pytest.raises(StorageFailed):
        await driver.propose(b"x")
    for late in (waiting, network.tasks[1]):
        with pytest.raises(StorageFailed):
            await late
    with pytest.raises(StorageFailed):
        driver.propose(b"y")
    await network.close()


async def test_a_log_that_cannot_be_read_ends_the_node():
    network = Network()
    leader = await network.lead()
    other = next(driver for driver in network.drivers.values() if driver is not leader)

    def damaged(_message):
        raise StorageDamaged("entry 1 is damaged")

    other.raft.step = damaged
    with pytest.raises(StorageDamaged):
        other.step(None)
    with pytest.raises(StorageDamaged):
        await network.tasks[other.status.id]
    await network.close()


async def test_a_command_that_cannot_be_read_ends_the_node():
    network = Network(ids=(1,))
    network.drivers[1].settle()
    leader = await network.lead()

    def damaged(_entry):
        raise ControllerDamaged("from the future")

    network.machines[1].apply = damaged
    with pytest.raises(ControllerDamaged):
        await leader.propose(b"x")
    with pytest.raises(ControllerDamaged):
        await network.tasks[1]
    await network.close()


async def test_what_waits_when_a_node_is_shut_down_is_told_so():
    network = Network()
    leader = await network.lead()
    network.cut = {1, 2, 3}
    waiting = leader.propose(b"x")
    await network.close()
    with pytest.raises(ControllerClosed):
        await waiting


async def test_the_log_is_compacted_by_its_size_and_a_late_follower_gets_the_snapshot():
    network = Network(compact_bytes=4_000, keep_entries=5)
    leader = await network.lead()
    late = next(id_ for id_, driver in network.drivers.items() if driver is not leader)
    await network.settle()
    network.cut = {late}
    for n in range(200):
        await leader.propose(b"%d" % n)
    assert leader.status.first_index > 50
    network.cut = set()
    async with asyncio.timeout(60):
        while len(network.machines[late].words) < 200:
            await network.settle(1)
    assert network.machines[late].words == network.machines[leader.status.id].words
    await network.close()


async def test_a_restart_applies_what_is_in_the_log_again():
    network = Network()
    leader = await network.lead()
    for n in range(20):
        await leader.propose(b"%d" % n)
    await network.settle()
    await network.close()
    for id_ in network.drivers:
        network.add(id_)
    again = await network.lead()
    await again.barrier()
    assert network.machines[again.status.id].words == [str(n) for n in range(20)]
    await network.close()


async def test_members_are_added_promoted_and_removed():
    network = Network()
    leader = await network.lead()
    await leader.propose(b"one")
    with pytest.raises(ChangeRefused):
        await leader.change(MembershipChange(kind=ChangeKind.PROMOTE, node=4))
    await leader.change(MembershipChange(kind=ChangeKind.ADD_LEARNER, node=4))
    network.add(4, storage=MemoryStorage())
    async with asyncio.timeout(60):
        while network.machines[4].words != ["one"]:
            await network.settle(1)
    await leader.change(MembershipChange(kind=ChangeKind.PROMOTE, node=4))
    gone = next(id_ for id_ in (1, 2, 3) if id_ != leader.status.id)
    await leader.change(MembershipChange(kind=ChangeKind.REMOVE, node=gone))
    assert leader.status.membership.voters == tuple(sorted({1, 2, 3, 4} - {gone}))
    await network.close()


async def test_the_leadership_is_handed_over_and_proposals_meanwhile_are_dropped():
    network = Network()
    leader = await network.lead()
    await leader.propose(b"one")
    await network.settle()
    heir = next(id_ for id_, driver in network.drivers.items() if driver is not leader)
    leader.transfer(heir)
    with pytest.raises(ProposalDropped):
        leader.propose(b"x")
    async with asyncio.timeout(60):
        while network.drivers[heir].status.role.value != "leader":
            await network.settle(1)
    assert await network.drivers[heir].propose(b"two") == 2
    await network.close()
