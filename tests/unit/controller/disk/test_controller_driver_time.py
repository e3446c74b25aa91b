"""The time of a Raft node: one timer for the next tick in which something is due, and nothing for a pause."""

import asyncio
import random

import pytest

from controller.disk.driver import Driver
from controller.raft import Membership, MemoryStorage, RaftMember, RaftSettings, Role, first_snapshot
from controller.raft.core import LAST_TICKS
from controller.raft.messages import LeaderHeartbeat, Vote, VoteReply
from tests.support.controller.controllers import Words

TICK_S = 0.05
SETTINGS = RaftSettings(heartbeat_ticks=2)


class Clock:
    """The part of an event loop that tells the time, which the test lets pass."""

    def __init__(self):
        self.now_s = 100.0
        self.timers = []

    def time(self):
        return self.now_s

    def call_later(self, delay_s, call):
        timer = Timer(self, self.now_s + delay_s, call)
        self.timers.append(timer)
        return timer

    def ring(self):
        """Lets time pass until the next timer, and returns how long that was."""
        timer = min(self.timers, key=lambda one: one.at_s)
        self.timers.remove(timer)
        before, self.now_s = self.now_s, max(self.now_s, timer.at_s)
        timer.call()
        return self.now_s - before


class Timer:
    def __init__(self, clock, at_s, call):
        self.clock, self.at_s, self.call = clock, at_s, call

    def cancel(self):
        self.clock.timers.remove(self)


@pytest.fixture
async def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", found.time)
    return found


@pytest.fixture
def anyio_backend():
    """Chooses asyncio, whose loop's clock can be set."""
    return "asyncio"


@pytest.fixture
async def follower(clock):
    """Returns the second of three nodes, which follows the first."""
    storage = MemoryStorage(first_snapshot(Membership.of(*(RaftMember(id=n) for n in (1, 2, 3)))))
    driver = Driver(2, storage, Words(), send=lambda _: None, settings=SETTINGS, chance=random.Random(1), tick_s=TICK_S)
    driver.ticks._loop = clock
    driver.ticks.begin_in_step()
    driver.raft.become_follower(1, 1)
    driver._look()
    driver.ticks.arm()
    yield driver
    driver.close()


HEARTBEAT = LeaderHeartbeat(sender=1, to=2, term=1, commit=1, quiet=True)

pytestmark = pytest.mark.anyio


async def test_a_follower_that_hears_its_leader_wakes_for_nothing(follower, clock):
    ready = follower.raft.ready()  # the new term
    follower._storage.save(ready)
    follower._finish(ready)
    follower._wake.clear()
    for _ in range(100):
        clock.now_s += 2 * TICK_S
        follower.step(HEARTBEAT)
        (timer,) = clock.timers
        assert timer.at_s - clock.now_s >= (SETTINGS.election_ticks - LAST_TICKS - 1) * TICK_S
    assert not follower._wake.is_set()
    assert follower.raft.elapsed == 0


async def test_without_a_leader_it_stands_for_election_after_as_long_as_ever(follower, clock):
    began_s, rings = clock.now_s, 0
    while follower.raft.role is Role.FOLLOWER:
        clock.ring()
        rings += 1
    assert clock.now_s - began_s == pytest.approx(follower.raft.node.settings.election_ticks * TICK_S, abs=0.5)
    assert rings <= LAST_TICKS + 1
    assert follower._wake.is_set()


async def test_after_a_pause_of_the_process_a_message_that_has_come_is_read_before_an_election(follower, clock):
    clock.now_s += 3600.0
    for _ in range(LAST_TICKS - 1):
        clock.ring()
        assert follower.raft.role is Role.FOLLOWER
    follower.step(HEARTBEAT)
    assert follower.raft.elapsed == 0
    assert follower.raft.rest_ticks > 0
    assert clock.ring() > (SETTINGS.election_ticks - LAST_TICKS - SETTINGS.heartbeat_ticks) * TICK_S


async def test_many_messages_do_not_keep_time_from_passing(follower, clock):
    late = VoteReply(sender=3, to=2, term=1, granted=False)  # no sign of a leader
    began_s = clock.now_s
    while follower.raft.role is Role.FOLLOWER:
        assert clock.now_s - began_s < 2 * SETTINGS.election_ticks * TICK_S
        clock.now_s += TICK_S / 7
        follower.step(late)
        while clock.timers and min(one.at_s for one in clock.timers) <= clock.now_s:
            clock.ring()


async def test_heartbeats_of_a_leader_are_in_step_whenever_it_was_elected_and_whatever_it_reads(follower, clock):
    interval_s = SETTINGS.heartbeat_ticks * TICK_S
    while follower.raft.role is not Role.LEADER:
        clock.ring()
        for message in follower.raft.node.outbox:
            if isinstance(message, Vote) and message.to == 3:
                term = message.term if message.pre else follower.raft.node.term
                follower.step(VoteReply(sender=3, to=2, term=term, granted=True, pre=message.pre))
        if follower.raft.role is Role.CANDIDATE and (ready := follower.raft.ready()) is not None:
            follower._storage.save(ready)
            follower._finish(ready)
            follower.step(VoteReply(sender=3, to=2, term=follower.raft.node.term, granted=True))
    times = []
    for n in range(20):
        if n % 3 == 0:
            follower.raft.read_index(b"%d" % n)
            follower.raft.leadership.flush()
        for peer in follower.raft.leadership.peers.values():
            peer.active = True
        follower.raft.node.early.clear()
        clock.ring()
        if any(isinstance(one, LeaderHeartbeat) for one in follower.raft.node.early):
            times.append(clock.now_s)
    assert len(times) >= 15
    assert all(min(at_s % interval_s, interval_s - at_s % interval_s) < 1e-6 for at_s in times)
