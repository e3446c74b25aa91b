"""Topics of moved messages: in whose share they count, and what becomes of messages beyond it."""

from types import SimpleNamespace

import pytest

from controller.api.client import ControllerError, ControllerUnreachable
from controller.api.commands import ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.domain.access import Identity
from gateway.domain.errors import Cause, Refusal
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


class Refusing:
    """A controller that has no topics, and makes none."""

    def __init__(self, error):
        self.error = error

    def watch(self, _changed):
        return lambda: None

    def topic(self, _name):
        return None

    async def do(self, _request):
        raise self.error


async def test_a_share_that_is_used_up_is_a_refusal(tmp_path):
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
        with pytest.raises(Refusal, match="at most 2 topics") as refused:
            await mover.route("c/x", creator="user eve")
        assert refused.value.cause is Cause.QUOTA
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


@pytest.mark.parametrize("error", [ControllerUnreachable("no controller answers"), ControllerError("of a later one")])
async def test_names_that_no_topic_can_have_are_refused_and_controllers_that_make_none_asked_again(error):
    controller = Refusing(error)
    mover = Mover(
        store=None, controller=controller, router=Router(controller), appended=lambda _: None, creates_topics=True
    )
    with pytest.raises(Refusal, match="255 bytes") as refused:
        await mover.route(f"{256 * 'a'}/x", creator="user eve")
    assert refused.value.cause is Cause.MALFORMED
    with pytest.raises(StoreOverloaded, match=str(error)):
        await mover.route("a/x", creator="user eve")


@pytest.mark.parametrize(
    ("identity", "creator"),
    [
        (Identity(name="eve", device="d"), "user eve"),
        (Identity(), ANYBODY),
        (Identity(name="guest", guest=True), ANYBODY),
        (Identity(name="guest"), "user guest"),  # one with a password of its own
    ],
)
def test_the_dead_letters_of_a_subscription_count_for_its_owner(identity, creator):
    principal = PushDeadLetters(SimpleNamespace(identity=identity), None).principal
    assert creator_of(principal) == creator
    assert (principal.name, principal.guest) == (identity.name, identity.guest)
    with pytest.raises(Refusal):
        principal.permissions.check("publish", "a")
