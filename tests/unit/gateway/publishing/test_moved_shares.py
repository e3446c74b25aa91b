"""Topics of moved messages: in whose share they count, and what becomes of messages beyond it."""

from types import SimpleNamespace

import pytest

from controller.api.commands import ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.domain.access import Identity
from gateway.publishing.moving import Mover
from gateway.publishing.routing.router import Router
from gateway.publishing.topic_shares import ANYBODY, creator_of
from gateway.push.dead_letters import PushDeadLetters
from store.base.errors import StoreOverloaded

pytestmark = pytest.mark.anyio


class Counted:
    """A controller that counts the topics that it is asked for."""

    def __init__(self, controller):
        self._controller, self.asked = controller, 0

    def __getattr__(self, name):
        return getattr(self._controller, name)

    async def do(self, request):
        self.asked += isinstance(request, CreateTopic)
        return await self._controller.do(request)


async def test_a_share_that_is_used_up_leaves_messages_where_they_are(tmp_path):
    limits = ClusterLimits(topics_per_creator_max=2, default_queues=1)
    controller = Counted(LocalController.open(tmp_path, now_ms=lambda: 0, limits=limits))
    mover = Mover(
        store=None,
        controller=controller,
        router=Router(controller),
        appended=lambda _: None,
        creates_topics=True,
    )
    for topic in ("a", "b"):
        await mover.route(f"{topic}/x", creator="user eve")
    for _ in range(3):  # the controllers are not asked again for each message
        with pytest.raises(StoreOverloaded, match="at most 2 topics"):
            await mover.route("c/x", creator="user eve")
    assert controller.asked == 3
    await mover.route("c/x", creator="user bob")
    await mover.route("c/y", creator="user eve")
    for topic in ("d", "e", "f"):
        await mover.route(f"{topic}/x", creator="")  # the operator has no share
    assert {topic.name: topic.creator for topic in controller.topics()} == {
        "a": "user eve",
        "b": "user eve",
        "c": "user bob",
        **dict.fromkeys("def", ""),
    }
    await controller.close()


@pytest.mark.parametrize(("name", "creator"), [("eve", "user eve"), ("", ANYBODY)])
def test_the_dead_letters_of_a_subscription_count_for_its_owner(name, creator):
    letters = PushDeadLetters(SimpleNamespace(identity=Identity(name=name)), None)
    assert creator_of(letters.principal) == creator
