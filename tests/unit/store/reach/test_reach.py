"""Complaints of one listener: when they begin, what they say, and when they are over."""

import asyncio

import pytest

from controller.api.client import Group, Replica
from controller.complaints.messages import COMPLAIN_MS, HINT_MS, PROXY_COMPLAIN_MS
from store.reach.reachability import MasterReachability
from store.reach.reporter import Reporter
from store.reach.silence import STEP_MS_MAX, PeerSilence
from store.remoting import RemoteStore
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

STEP_MS = 100


def group_of(master=1, epoch=1):
    replicas = tuple(Replica(id=n, node=f"n{n}", address=f"n{n}:1") for n in (1, 2, 3))
    return Group(number=4, replicas=replicas, master=master, master_epoch=epoch, sync_set=(1, 2, 3))


class Listener:
    """A reach with a clock of its own."""

    def __init__(self, me=2):
        self.answering = {"n3:1"}
        self.asked = []
        self.me = me
        self.now_ms = 0
        self.group = group_of()
        self.reach = MasterReachability(self._answers, probe_ms=HINT_MS, complain_ms=COMPLAIN_MS)
        self.reach.look(self.group, 0, me=me)

    async def _answers(self, address):
        self.asked.append(address)
        return address in self.answering

    async def passes(self, ms, *, received=False):
        """Lets time pass, and returns how often there was news."""
        news = 0
        for _ in range(0, ms, STEP_MS):
            self.now_ms += STEP_MS
            if received:
                self.reach.received()
            news += self.reach.look(self.group, self.now_ms, me=self.me)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return news


async def test_a_silent_master_is_complained_of_with_whom_one_reaches_instead():
    one = Listener()
    assert await one.passes(5_000, received=True) == 0
    assert one.reach.complaint is None
    assert await one.passes(HINT_MS) == 1
    assert await one.passes(COMPLAIN_MS) == 1  # it counts
    found = one.reach.complaint
    assert (found.group, found.epoch, found.met, found.reaches) == (4, 1, True, (3,))
    assert found.silent_ms >= COMPLAIN_MS
    assert set(one.asked) == {"n3:1"}  # neither the master nor itself
    one.reach.received()
    assert await one.passes(STEP_MS) == 1
    assert one.reach.complaint is None


async def test_replicas_are_asked_again_while_the_master_is_silent():
    one = Listener(me=None)
    await one.passes(1_000)
    assert one.reach.complaint.reaches == (3,)
    one.answering = {"n2:1"}
    await one.passes(1_500)
    assert one.reach.complaint.reaches == (2,)
    assert len(one.asked) <= 6


async def test_a_new_master_has_the_whole_time_again_and_was_never_met():
    one = Listener()
    await one.passes(STEP_MS, received=True)
    await one.passes(3_000)
    one.group = group_of(master=3, epoch=2)
    await one.passes(STEP_MS)
    assert one.reach.complaint is None
    await one.passes(3_000)
    assert (one.reach.complaint.epoch, one.reach.complaint.met) == (2, False)
    one.group = group_of(master=2, epoch=3)  # the listener is master itself
    await one.passes(3_000)
    assert one.reach.complaint is None


def test_the_time_in_which_a_process_stood_still_is_no_silence():
    silence = PeerSilence()
    silence.tick(0)
    silence.tick(60_000)
    assert silence.ms == STEP_MS_MAX
    silence.tick(59_000)  # a clock that goes back
    assert silence.ms == STEP_MS_MAX


class HeardStore(RemoteStore):
    """As much of a client as a reporter looks at."""

    def __init__(self):
        self.at, self.received_s = "n1:1", 1.0

    @property
    def last_received(self):
        return self.at, self.received_s


class GroupController:
    cluster = "c"

    def __init__(self):
        self.found = group_of()

    def group(self, _number):
        return self.found


async def test_a_proxy_reports_the_masters_that_it_does_not_hear(monkeypatch):
    async def answers(address, *_, **__):
        return address == "n2:1"

    monkeypatch.setattr("store.reach.reporter.answers", answers)
    monkeypatch.setattr("store.reach.reporter.LOOK_S", 0.001)
    monkeypatch.setattr("store.reach.reporter.CALM_LOOK_S", 0.001)
    monkeypatch.setattr("store.reach.reporter.REPORT_S", 0.05)
    log, now, reports = HeardStore(), [0], []

    def now_ms():
        now[0] += STEP_MS
        log.received_s += 1.0 if hears else 0.0
        return now[0]

    async def report(one):
        reports.append(one)

    hears = True
    reporter = Reporter(GroupController(), lambda: {4: log}, report, now_ms=now_ms)
    running = asyncio.create_task(reporter.run())
    try:
        await until(lambda: now[0] > 3 * PROXY_COMPLAIN_MS)
        assert reports
        assert not reports[-1].complaints
        log.at = "n9:1"  # it is heard, and is not the master
        await until(lambda: reports[-1].complaints)
        (found,) = reports[-1].complaints
        assert (found.group, found.epoch, found.reaches) == (4, 1, (2,))
        assert len({one.proxy for one in reports}) == 1
        log.at = "n1:1"
        await until(lambda: not reports[-1].complaints)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_pause_between_two_pings_of_a_master_is_not_reported(monkeypatch):
    monkeypatch.setattr("store.reach.reporter.LOOK_S", 0.001)
    monkeypatch.setattr("store.reach.reporter.CALM_LOOK_S", 0.001)
    monkeypatch.setattr("store.reach.reporter.REPORT_S", 60.0)  # more than the test lasts
    log, now, reports = HeardStore(), [0], []

    def now_ms():
        now[0] += STEP_MS
        log.received_s = float(1 + now[0] // 1_000)
        return now[0]

    async def report(one):
        reports.append(one)

    reporter = Reporter(GroupController(), lambda: {4: log}, report, now_ms=now_ms)
    running = asyncio.create_task(reporter.run())
    try:
        await until(lambda: now[0] > 20_000)
        assert len(reports) == 1
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
