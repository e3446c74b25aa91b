"""Changes of a subscription that are made only while its revision is as a client expects it."""

from typing import Any

import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.kv import Match
from gateway.port.push import (
    CreateSubscription,
    DeleteSubscription,
    GetSubscription,
    PauseSubscription,
    SubscriptionSpec,
    UpdateSubscription,
)
from gateway.push.guard import SinkGuard
from gateway.push.http_kind import HttpKind
from gateway.push.registry import PushRegistry
from gateway.push.settings import SubscriptionsConfig
from store.api.keys import EXISTS
from store.local.local import LocalStore

pytestmark = pytest.mark.anyio

WHO = Principal(name="u")
SPEC = SubscriptionSpec(sink="http://127.0.0.1:9/", protocol="HTTP")
CHANGES = [
    lambda registry, id_, match: registry.update(WHO, UpdateSubscription(id=id_, spec=SPEC, match=match)),
    lambda registry, id_, match: registry.pause(WHO, PauseSubscription(id=id_, paused=True, match=match)),
    lambda registry, id_, match: registry.delete(WHO, DeleteSubscription(id=id_, match=match)),
]


@pytest.fixture
async def registry(tmp_path):
    config = SubscriptionsConfig(private_sinks=("127.0.0.1",))
    async with await LocalStore.open(tmp_path) as store:
        yield PushRegistry(
            store, config, SinkGuard(config), {"HTTP": HttpKind()}, new_id=lambda: "s1", now_ms=lambda: 1
        )


@pytest.mark.parametrize("change", CHANGES, ids=["update", "pause", "delete"])
async def test_a_change_with_another_revision_does_nothing(registry: PushRegistry, change: Any) -> None:
    made = await registry.create(WHO, CreateSubscription(spec=SPEC))
    for match in (Match(any_of=(made.revision + 1,)), Match(any_of=(0,)), Match(none_of=(made.revision,))):
        with pytest.raises(Refusal) as refused:
            await change(registry, made.id, match)
        assert refused.value.cause is Cause.PRECONDITION
    assert await registry.get(WHO, GetSubscription(id=made.id)) == made


@pytest.mark.parametrize("change", CHANGES, ids=["update", "pause", "delete"])
@pytest.mark.parametrize("first", [0, EXISTS])
async def test_a_change_with_one_of_the_revisions_is_made(registry: PushRegistry, change: Any, first: int) -> None:
    made = await registry.create(WHO, CreateSubscription(spec=SPEC))
    done = await change(registry, made.id, Match(any_of=(first, made.revision)))
    assert done.id == made.id
