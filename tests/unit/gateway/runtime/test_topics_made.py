"""Topics that are made when messages for them come, and controllers that cannot make them."""

import asyncio

import pytest

from controller.api.client import ControllerError, ControllerOverloaded, ControllerUnreachable, MetadataForgotten
from gateway.config.config import TopicsConfig
from gateway.domain.errors import Cause
from gateway.runtime.topics import TopicKeeper
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class MakingRig:
    """A keeper of topics whose controllers answer as the test says: None, an error, or not at all."""

    def __init__(self):
        self.answer = None
        self.answering = asyncio.Event()
        self.answering.set()
        self.asked = []
        self.ended = []
        self.keeper = TopicKeeper(
            store=None,
            controller=self,
            config=TopicsConfig(),
            spawn=asyncio.ensure_future,
            clock=lambda: 0.0,
            created=lambda name, refusal, _creator: self.ended.append((name, refusal)),
        )

    async def do(self, command):
        self.asked.append(command.name)
        await self.answering.wait()
        if self.answer is not None:
            raise self.answer

    async def create(self, name):
        """Returns the refusal of a topic; None: it is made."""
        self.keeper.create(name, "")
        await until(lambda: name in dict(self.ended))
        return dict(self.ended)[name]


@pytest.mark.parametrize("error", [ControllerUnreachable, ControllerOverloaded, MetadataForgotten])
async def test_what_the_controllers_cannot_take_now_is_to_be_tried_again(error):
    """A bridge acknowledges upstream what is refused for good: such a message would be lost."""
    rig = MakingRig()
    rig.answer = error("at 10.0.0.7:8082: no")
    refusal = await rig.create("new")
    assert (refusal.cause, refusal.retriable) == (Cause.UNAVAILABLE, True)
    assert "10.0.0.7" not in refusal.detail


async def test_a_name_that_no_controller_takes_is_refused_for_good():
    rig = MakingRig()
    rig.answer = ControllerError("a name has 1 to 255 bytes")
    refusal = await rig.create("new")
    assert (refusal.cause, refusal.retriable) == (Cause.MALFORMED, False)


async def test_only_the_first_new_topic_waits_for_silent_controllers():
    """All that is published waits behind a topic that is being made."""
    rig = MakingRig()
    rig.answer = ControllerUnreachable("no controller answers")
    await rig.create("first")
    rig.answering.clear()
    for name in ("second", "third"):
        assert (await rig.create(name)).cause is Cause.UNAVAILABLE
    assert rig.asked == ["first", "second"]
    rig.answer = None
    rig.answering.set()
    await until(lambda: not rig.keeper._silent)
    assert await rig.create("fourth") is None
