"""Wills that wait are looked at when rights change: in pages, again when the store fails, once for many changes."""

import asyncio

import msgspec
import pytest

from gateway.domain.access import Identity
from gateway.domain.errors import Cause, Refusal
from gateway.sessions import will_rights as wills_module
from gateway.sessions.will_rights import WaitingWills
from gateway.sessions.wills import NAMESPACE, WillRecord
from store.api.keys import Entry
from store.api.message import Message
from store.base.errors import StoreClosed

pytestmark = pytest.mark.anyio


class WillsStore:
    """Wills by session, and the timers that wait."""

    def __init__(self):
        self.keys = self.timers = self  # its subjects
        self.kv, self.pending, self.pages, self.failing = {}, set(), 0, 0

    def add(self, session, timer, *, who="bob"):
        identity = None if who is None else Identity(name=who)
        record = WillRecord(message=Message(f"wills/{session}"), timer=timer, session=session, who=identity)
        self.kv[f"{NAMESPACE}/{session}"] = msgspec.msgpack.encode(record)
        self.pending.add(timer)

    async def prefix(self, prefix, *, after, limit):
        self.pages += 1
        if self.failing:
            self.failing -= 1
            raise StoreClosed("down")
        keys = [key for key in sorted(self.kv) if key.startswith(prefix) and key > after]
        return [Entry(key, self.kv[key], 1, 1, 1) for key in keys[:limit]]

    async def cancel(self, timer):
        was = timer in self.pending
        self.pending.discard(timer)
        return was


class WaitingWillsRig:
    def __init__(self, monkeypatch):
        monkeypatch.setattr(wills_module, "PAGE", 2)
        monkeypatch.setattr(wills_module, "PAUSE_S", 0.001)
        self.store, self.denied, self.tasks = WillsStore(), set(), []
        self.wills = WaitingWills(self.store, self.check, spawn=self.spawn)

    def check(self, who, _message):
        if who.name in self.denied:
            raise Refusal(Cause.FORBIDDEN, who.name)

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))

    async def rest(self):
        await asyncio.gather(*self.tasks)


@pytest.fixture
def rig(monkeypatch):
    return WaitingWillsRig(monkeypatch)


async def test_only_what_is_not_allowed_any_more_is_called_off(rig):
    for n in range(5):
        rig.store.add(f"s{n}", f"t{n}", who="bob" if n % 2 else "eve")
    rig.store.add("of nobody", "t9", who=None)
    rig.store.add("armed", "", who="bob")
    rig.denied = {"bob"}
    rig.wills.look()
    await rig.rest()
    assert rig.store.pending == {"t0", "t2", "t4", "t9", ""}


async def test_a_store_that_fails_is_asked_again_and_many_changes_are_one_look(rig):
    rig.store.add("s", "t")
    rig.store.failing = 1
    rig.denied = {"bob"}
    for _ in range(10):
        rig.wills.look()
    await rig.rest()
    assert len(rig.tasks) == 1
    assert rig.store.pending == set()
    assert rig.store.pages == 1 + 2, "a page that failed, then one with a will and one without"
    rig.wills.look()
    await rig.rest()
    assert len(rig.tasks) == 2


async def test_records_that_cannot_be_decoded_are_passed_over_and_counted(rig):
    for n in range(5):
        rig.store.add(f"s{n}", f"t{n}")
    rig.store.kv[f"{NAMESPACE}/s1"] = b"\xc1"
    rig.store.kv[f"{NAMESPACE}/s3"] = msgspec.msgpack.encode({"message": {"address": 1}})
    rig.store.kv[f"{NAMESPACE}/s4"] = rig.store.kv[f"{NAMESPACE}/s2"].replace(b"bob", b"\xff\xff\xff")
    rig.denied = {"bob"}
    rig.wills.look()
    await rig.rest()
    assert rig.store.pending == {"t1", "t3", "t4"}
    assert rig.wills.undecodable_count == 3


@pytest.mark.parametrize(("failing", "asked"), [(0, 1), (2, 3), (wills_module.TRIES_COUNT_MAX + 2, 5)])
async def test_timers_fire_once_wills_were_looked_at_or_cannot_be_for_long(rig, failing, asked):
    rig.store.failing, begun = failing, []
    rig.wills.begin(lambda: begun.append(rig.store.pages))
    await rig.rest()
    assert begun == [asked]


@pytest.mark.parametrize("before", [0, wills_module.TRIES_COUNT_MAX + 1])
async def test_timers_fire_after_five_failures_whatever_looks_there_were_before(rig, before):
    """Rights have changed while the gateway started."""
    rig.store.failing, begun = before, []
    rig.wills.look()
    await rig.rest()
    rig.store.failing = wills_module.TRIES_COUNT_MAX + 2
    seen = rig.store.pages
    rig.wills.begin(lambda: begun.append(rig.store.pages - seen))
    await rig.rest()
    assert begun == [wills_module.TRIES_COUNT_MAX]
