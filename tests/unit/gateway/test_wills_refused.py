"""Wills that wait, when the store refuses what they need."""

import pytest

from gateway.errors import Cause, Refusal
from gateway.message import Message
from gateway.port import Outcome
from gateway.wills import Wills
from store.client import Entry
from store.format import LogOffset, Position

pytestmark = pytest.mark.anyio

WILL = Message("t/will", b"gone", deliver_at_ms=5_000)


class Store:
    """A KV, and one timer."""

    def __init__(self):
        self.kv = {}
        self.pending = False

    async def kv_get(self, key):
        return Entry(key, self.kv[key], 1, 1, 1) if key in self.kv else None

    async def kv_put(self, key, value):
        self.kv[key] = value

    async def kv_delete(self, key):
        self.kv.pop(key, None)

    async def cancel_timer(self, _timer):
        was, self.pending = self.pending, False
        return was


class Rig:
    def __init__(self):
        self.store = Store()
        self.refuse = False
        self.published = []
        self.wills = Wills(self.store, self.publish, now_ms=lambda: 1_000)

    def publish(self, ended, effect, _size):
        if self.refuse:
            ended.published(effect.token, Outcome(error=Refusal(Cause.OVERLOAD)), 0)
            return
        [message] = effect.messages
        if message.deliver_at_ms is None:
            self.published.append(message.body)
        else:
            self.store.pending = True
        ended.published(effect.token, Outcome(first=Position(LogOffset(0), 0)), 0)


async def test_a_will_whose_publishing_is_refused_is_published_by_the_next_attempt():
    rig = Rig()
    await rig.wills.leave("session", WILL)
    rig.refuse = True
    with pytest.raises(Refusal):
        await rig.wills.settle("session", ended=True)
    assert not rig.store.pending
    rig.refuse = False
    await rig.wills.settle("session", ended=True)
    assert rig.published == [b"gone"]
    await rig.wills.settle("session", ended=True)
    assert rig.published == [b"gone"]
    assert not rig.store.kv


async def test_a_session_that_is_taken_up_again_has_no_will_left():
    rig = Rig()
    await rig.wills.leave("session", WILL)
    await rig.wills.settle("session", ended=False)
    assert not rig.published
    assert not rig.store.pending
    assert not rig.store.kv


async def test_a_will_that_was_delivered_in_its_time_is_not_published_again():
    rig = Rig()
    await rig.wills.leave("session", WILL)
    rig.store.pending = False
    await rig.wills.settle("session", ended=True)
    assert not rig.published
