"""Storing batches of a bridge: the last outcome is good only when all of the batch is stored."""

import asyncio
import random

import pytest

from gateway.bridges.shared.figures import Figures
from gateway.bridges.shared.storing import BridgeStore
from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Outcome
from store.api.message import Message
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

NEVER = Refusal(Cause.TOO_LARGE, "too large")
LATER = Refusal(Cause.OVERLOAD, "the disk is full", retry_after_ms=1)


class StoringEnds:
    def __init__(self):
        self.asked = []
        self.store = BridgeStore(
            "up",
            Figures(),
            lambda _publisher, effect, _size: self.asked.append(effect),
            crowded=lambda: False,
            chance=random.Random(1),
            hold=lambda: None,
        )

    def answer(self, **outcome):
        self.store.published(self.asked[-1].token, Outcome(**outcome), 0)


def messages(count):
    return [Message("a", b"%d" % number, 0, "amqp", "d") for number in range(count)]


async def test_what_is_refused_for_now_is_stored_again_and_what_is_refused_for_good_is_told():
    rig = StoringEnds()
    storing = asyncio.ensure_future(rig.store.stored(messages(3)))
    await until(lambda: rig.asked)
    rig.answer(refused={0: NEVER, 2: LATER})
    await until(lambda: len(rig.asked) == 2)
    assert [one.body for one in rig.asked[1].messages] == [b"2"]
    rig.answer()
    assert await storing == {0: NEVER}


async def cut_off(rig):
    """Ends the connection, and returns the outcome of the messages in flight."""
    ending = asyncio.ensure_future(rig.store.last_outcome())
    await asyncio.sleep(0)
    rig.answer()
    return await ending


async def test_a_batch_of_which_all_is_stored_can_still_be_acknowledged():
    rig = StoringEnds()
    storing = asyncio.ensure_future(rig.store.stored(messages(1)))
    await until(lambda: rig.asked)
    storing.cancel()
    assert await cut_off(rig)


async def test_a_batch_of_which_a_part_was_refused_for_good_comes_again_when_the_connection_ends():
    rig = StoringEnds()
    storing = asyncio.ensure_future(rig.store.stored(messages(2)))
    await until(lambda: rig.asked)
    rig.answer(refused={0: NEVER, 1: LATER})
    await until(lambda: len(rig.asked) == 2)
    storing.cancel()
    assert not await cut_off(rig)
