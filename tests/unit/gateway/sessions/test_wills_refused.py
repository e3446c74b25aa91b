"""Wills that wait, when the store refuses what they need."""

import random

import pytest
from msgspec.structs import replace

from gateway.domain.access import Identity
from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.ownership.owners import LocalOwners
from gateway.port.adapter import Outcome
from gateway.port.sessions import Will
from gateway.sessions.wills import Wills
from store.api.keys import Entry, Put
from store.api.message import Message, encode
from store.format.frame import LogOffset, Position

pytestmark = pytest.mark.anyio

WILL = Will(message=Message("t/will", b"gone"), delay_ms=4_000)


class Died(Exception):
    """The process has died."""


class OneWillStore:
    """A KV, and one timer."""

    def __init__(self):
        self.keys = self.timers = self.log = self
        self.kv = {}
        self.pending = False
        self.found = {}
        self.dies = ""  # "before" or "behind" the end of the timer

    async def get(self, key):
        return Entry(key, self.kv[key], 1, 1, 1) if key in self.kv else None

    async def put(self, key, value):
        self.kv[key] = value

    async def delete(self, key):
        self.kv.pop(key, None)

    async def cancel(self, _timer):
        if self.dies == "before":
            raise Died
        was, self.pending = self.pending, False
        if self.dies:
            raise Died
        return was

    async def find(self, _kind, id_hash):
        return [position for position, message in self.found.items() if hash64(message.id) == id_hash]

    async def read(self, position):
        return encode(self.found[position])


class RefusedWills:
    def __init__(self):
        self.store = OneWillStore()
        self.refuse = None
        self.full = False  # of timers
        self.published = []
        self.numbers = []
        self.wills = Wills(self.store, self.publish, now_ms=lambda: 1_000, random=random.Random(1))

    def publish(self, ended, effect, _size):
        self.numbers.append(effect.once)
        if self.refuse is not None:
            ended.published(effect.token, Outcome(error=Refusal(self.refuse)), 0)
            return
        [message] = effect.messages
        if self.full and message.deliver_at_ms is not None:
            ended.published(effect.token, Outcome(refused={0: Refusal(Cause.QUOTA)}), 0)
            return
        if message.deliver_at_ms is None:
            self.published.append(message.body)
        else:
            self.store.pending = True
        ended.published(effect.token, Outcome(first=Position(LogOffset(0), 0)), 0)

    async def arm(self, will=WILL):
        self.owned = await LocalOwners(self.store).take("session")
        record, put = self.wills.arm("session", will)
        assert isinstance(put, Put)
        await self.owned.write([put])
        return record

    async def leave(self):
        record = await self.wills.find("session")
        return await self.wills.leave(self.owned, "session", record, expiry_s=None)

    async def settle(self, *, ended):
        await self.wills.settle(self.owned, "session", ended=ended)


async def test_a_will_whose_publishing_is_refused_is_published_by_the_next_attempt():
    rig = RefusedWills()
    await rig.arm()
    assert await rig.leave()
    rig.refuse = Cause.OVERLOAD
    with pytest.raises(Refusal):
        await rig.settle(ended=True)
    assert not rig.store.pending
    rig.refuse = None
    await rig.settle(ended=True)
    assert rig.published == [b"gone"]
    await rig.settle(ended=True)
    assert rig.published == [b"gone"]
    assert not rig.store.kv


async def test_a_session_that_is_taken_up_again_has_no_will_left():
    rig = RefusedWills()
    await rig.arm()
    await rig.leave()
    await rig.settle(ended=False)
    assert not rig.published
    assert not rig.store.pending
    assert not rig.store.kv


async def test_a_will_that_was_delivered_in_its_time_is_not_published_again():
    rig = RefusedWills()
    await rig.arm()
    await rig.leave()
    rig.store.pending = False
    await rig.settle(ended=True)
    assert not rig.published


@pytest.mark.parametrize("dies", ["before", "behind"])
async def test_a_will_that_is_called_in_is_published_though_its_process_dies(dies):
    rig = RefusedWills()
    await rig.arm()
    await rig.leave()
    rig.store.dies = dies
    with pytest.raises(Died):
        await rig.settle(ended=True)
    assert not rig.published
    rig.store.dies = ""
    await rig.settle(ended=True)
    assert rig.published == [b"gone"]
    assert not rig.store.kv


@pytest.mark.parametrize("id_", ["", "named by its client"])
async def test_a_will_whose_time_comes_before_it_is_called_in_once_more_is_published_once(id_):
    rig = RefusedWills()
    await rig.arm(Will(message=Message("t/will", b"gone", id=id_), delay_ms=4_000))
    await rig.leave()
    rig.store.dies = "before"
    with pytest.raises(Died):
        await rig.settle(ended=True)
    rig.store.dies, rig.store.pending = "", False  # its time has come
    record = await rig.wills.find("session")
    other = Message("t/other", b"another one", id=record.message.id)
    rig.store.found = {Position(LogOffset(0), 0): other} if id_ else {}
    rig.store.found[Position(LogOffset(9), 0)] = replace(record.message, deliver_at_ms=None)
    await rig.settle(ended=True)
    assert not rig.published
    assert not rig.store.kv


async def test_a_will_of_which_nobody_knows_whether_it_is_there_is_tried_under_the_same_number():
    rig = RefusedWills()
    await rig.arm(Will(message=Message("t/will", b"gone")))
    rig.refuse = Cause.UNKNOWN
    for _ in range(2):
        with pytest.raises(Refusal):
            await rig.leave()
    rig.refuse = None
    assert not await rig.leave()
    assert rig.published == [b"gone"]
    first, *others = rig.numbers
    assert others == [first, first]
    assert first > 0


async def test_a_will_that_nobody_may_publish_is_given_up():
    rig = RefusedWills()
    await rig.arm(Will(message=Message("t/will", b"gone")))
    rig.refuse = Cause.FORBIDDEN
    assert not await rig.leave()


async def test_a_will_that_cannot_wait_is_published_at_once():
    rig = RefusedWills()
    await rig.arm()
    rig.full = True
    assert not await rig.leave()
    assert rig.published == [b"gone"]
    assert not await rig.leave()  # as after a crash: by the same number, which the log takes once
    assert len(set(rig.numbers)) == 1


async def test_a_right_that_is_revoked_while_a_will_begins_to_wait_calls_it_off():
    """A reader of all waiting wills, when rights change, may not know of it yet."""
    rig, answers = RefusedWills(), [None, Refusal(Cause.FORBIDDEN)]

    def check(_who, _message):
        if (answer := answers.pop(0)) is not None:
            raise answer

    rig.wills._check = check
    await rig.arm(replace(WILL, who=Identity(name="bob")))
    await rig.leave()
    assert answers == []
    assert not rig.store.pending
    assert rig.published == []
