"""Changes of a subscription that are made only while its revision is as a client expects it."""

import asyncio
from typing import Any

import msgspec
import pytest

from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.kv import Match
from gateway.port.push import (
    CreateSubscription,
    DeleteSubscription,
    GetSubscription,
    PauseSubscription,
    ProtocolSettings,
    SinkCredential,
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


async def test_subscriptions_created_at_once_pass_no_limit(registry: PushRegistry, monkeypatch: Any) -> None:
    """All of them counted the subscriptions that were there before the first one was stored."""
    monkeypatch.setattr(registry, "_config", msgspec.structs.replace(registry._config, subscriptions_max=3))
    monkeypatch.setattr(registry, "_new_id", iter("abcdef").__next__)
    creating = [registry.create(WHO, CreateSubscription(spec=SPEC)) for _ in range(6)]
    done = await asyncio.gather(*creating, return_exceptions=True)
    assert [getattr(one, "cause", None) for one in done] == [None] * 3 + [Cause.QUOTA] * 3


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


@pytest.mark.parametrize(
    "credential",
    [
        SinkCredential(credentialtype="PLAIN", identifier="a"),
        SinkCredential(credentialtype="ACCESSTOKEN"),
        SinkCredential(credentialtype="OTHER"),
        SinkCredential(credentialtype="PLAIN", identifier="a", secret="b", accesstoken="c"),
        SinkCredential(credentialtype="PLAIN", identifier="a", secret="b", accesstokentype="bearer"),
        SinkCredential(credentialtype="ACCESSTOKEN", accesstoken="c", secret="b"),
    ],
)
async def test_a_new_subscription_has_a_whole_credential_of_one_type(
    registry: PushRegistry, credential: SinkCredential
) -> None:
    spec = msgspec.structs.replace(SPEC, sinkcredential=credential)
    with pytest.raises(Refusal, match=r"^sinkcredential") as refused:
        await registry.create(WHO, CreateSubscription(spec=spec))
    assert refused.value.cause is Cause.MALFORMED


async def test_a_replacement_may_leave_out_the_secret(registry: PushRegistry) -> None:
    whole = SinkCredential(credentialtype="PLAIN", identifier="a", secret="b")
    made = await registry.create(WHO, CreateSubscription(spec=msgspec.structs.replace(SPEC, sinkcredential=whole)))
    bare = msgspec.structs.replace(SPEC, sinkcredential=SinkCredential(credentialtype="PLAIN", identifier="a"))
    done = await registry.update(WHO, UpdateSubscription(id=made.id, spec=bare))
    assert done.spec.sinkcredential == bare.sinkcredential


async def test_a_refused_header_is_named_by_its_place(registry: PushRegistry) -> None:
    spec = msgspec.structs.replace(SPEC, protocolsettings=ProtocolSettings(headers={"host": "x"}))
    with pytest.raises(Refusal, match=r"^protocolsettings\.headers: 'host'"):
        await registry.create(WHO, CreateSubscription(spec=spec))


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
async def test_a_credential_and_a_header_do_not_both_say_the_authorization(registry: PushRegistry, name: str) -> None:
    headers = ProtocolSettings(headers={name: "Key x"})
    token = SinkCredential(credentialtype="ACCESSTOKEN", accesstoken="t")
    both = msgspec.structs.replace(SPEC, protocolsettings=headers, sinkcredential=token)
    with pytest.raises(Refusal, match=r"^protocolsettings\.headers: '[Aa]uthorization'") as refused:
        await registry.create(WHO, CreateSubscription(spec=both))
    assert refused.value.cause is Cause.MALFORMED
    made = await registry.create(WHO, CreateSubscription(spec=msgspec.structs.replace(both, sinkcredential=None)))
    with pytest.raises(Refusal, match=r"^protocolsettings\.headers"):
        await registry.update(WHO, UpdateSubscription(id=made.id, spec=both))


async def test_values_of_headers_are_not_shown_and_stay_where_they_are_sent_back_so(registry: PushRegistry) -> None:
    headers = ProtocolSettings(headers={"X-Api-Key": "hidden", "x-tenant": "a"})
    made = await registry.create(WHO, CreateSubscription(spec=msgspec.structs.replace(SPEC, protocolsettings=headers)))
    assert made.spec.protocolsettings.headers == {"X-Api-Key": None, "x-tenant": None}
    assert b"hidden" not in msgspec.json.encode(await registry.get(WHO, GetSubscription(id=made.id)))
    changed = ProtocolSettings(headers={"x-api-key": None, "x-tenant": "b"})
    spec = msgspec.structs.replace(SPEC, protocolsettings=changed)
    await registry.update(WHO, UpdateSubscription(id=made.id, spec=spec))
    record, _ = await registry._found(made.id)
    assert record.spec.protocolsettings.headers == {"x-api-key": "hidden", "x-tenant": "b"}


@pytest.mark.parametrize("sink", [SPEC.sink, "http://127.0.0.1:9/other"], ids=["unknown name", "another sink"])
async def test_a_header_without_a_value_is_refused(registry: PushRegistry, sink: str) -> None:
    known = ProtocolSettings(headers={"x-key": "hidden"})
    name = "x-other" if sink == SPEC.sink else "x-key"
    bare = msgspec.structs.replace(SPEC, sink=sink, protocolsettings=ProtocolSettings(headers={name: None}))
    with pytest.raises(Refusal, match=rf"^protocolsettings\.headers: '{name}' has no value"):
        await registry.create(WHO, CreateSubscription(spec=bare))
    made = await registry.create(WHO, CreateSubscription(spec=msgspec.structs.replace(SPEC, protocolsettings=known)))
    with pytest.raises(Refusal, match=rf"^protocolsettings\.headers: '{name}' has no value"):
        await registry.update(WHO, UpdateSubscription(id=made.id, spec=bare))


async def test_another_type_of_credential_takes_no_secret_along(registry: PushRegistry) -> None:
    plain = SinkCredential(credentialtype="PLAIN", identifier="a", secret="b")
    made = await registry.create(WHO, CreateSubscription(spec=msgspec.structs.replace(SPEC, sinkcredential=plain)))
    token = SinkCredential(credentialtype="ACCESSTOKEN", accesstoken="t")
    await registry.update(WHO, UpdateSubscription(id=made.id, spec=msgspec.structs.replace(SPEC, sinkcredential=token)))
    record, _ = await registry._found(made.id)
    assert record.spec.sinkcredential == token
