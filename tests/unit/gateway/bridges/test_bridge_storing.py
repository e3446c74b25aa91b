"""Storing batches of a bridge, and how far a batch has come when the connection ends."""

import asyncio
import random

import pytest

from gateway.bridges.shared.figures import Figures
from gateway.bridges.shared.storing import BridgeStore
from gateway.domain.errors import Cause, Refusal
from gateway.ownership.owners import OwnershipLost
from gateway.port.adapter import Outcome
from store.api.message import Message
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

NEVER = Refusal(Cause.TOO_LARGE, "too large")
LATER = Refusal(Cause.OVERLOAD, "the disk is full", retry_after_ms=1)


class StoringEnds:
    def __init__(self):
        self.asked = []
        self.figures = Figures()
        self.store = BridgeStore(
            "up",
            self.figures,
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
    task = asyncio.ensure_future(rig.store.stored(messages(3)))
    await until(lambda: rig.asked)
    rig.answer(refused={0: NEVER, 2: LATER})
    await until(lambda: len(rig.asked) == 2)
    assert [one.body for one in rig.asked[1].messages] == [b"2"]
    rig.answer()
    assert await task == {0: NEVER}


async def cut_off(rig, **outcome):
    """Ends the connection, and returns the batch once the outcome of the messages in flight is known."""
    ending = asyncio.ensure_future(rig.store.last_outcome())
    await asyncio.sleep(0)
    rig.answer(**outcome)
    batch = await ending
    assert await rig.store.last_outcome() is None
    return batch.left, batch.never


async def storing(rig, count):
    task = asyncio.ensure_future(rig.store.stored(messages(count)))
    await until(lambda: rig.asked)
    return task


async def test_a_batch_of_which_all_is_stored_can_still_be_acknowledged():
    rig = StoringEnds()
    (await storing(rig, 1)).cancel()
    assert await cut_off(rig) == ([], {})


async def test_a_batch_that_is_stored_when_the_connection_ends_tells_what_is_left_and_what_was_refused_for_good():
    rig = StoringEnds()
    task = await storing(rig, 4)
    rig.answer(refused={0: NEVER, 1: LATER, 3: LATER})
    await until(lambda: len(rig.asked) == 2)
    task.cancel()
    assert await cut_off(rig, refused={1: LATER}) == ([3], {0: NEVER})


async def test_a_batch_that_waits_to_be_stored_again_tells_what_is_left():
    rig = StoringEnds()
    task = await storing(rig, 2)
    rig.answer(refused={1: Refusal(Cause.UNAVAILABLE, "no master", retry_after_ms=60_000)})
    await until(lambda: rig.figures.error)
    task.cancel()
    assert (await rig.store.last_outcome()).left == [1]


async def test_what_a_later_owner_has_kept_out_is_left():
    rig = StoringEnds()
    (await storing(rig, 1)).cancel()
    assert await cut_off(rig, error=OwnershipLost("bridge/up")) == ([0], {})


async def test_a_batch_that_was_stored_leaves_nothing():
    rig = StoringEnds()
    task = await storing(rig, 1)
    rig.answer()
    assert await task == {}
    assert await rig.store.last_outcome() is None
