"""Searches of users whose rights change while they wait."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.delivery.find_waits import FindWaits
from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.principal import Principal
from gateway.port.reads import FindMessages
from gateway.publishing.timer_secrets import TimerSecrets
from store.api.message import Message
from store.local.local import LocalStore
from tests.support.gateway.asking import ask
from tests.support.gateway.find_frames import frame
from tests.support.store.store_kit import append

pytestmark = pytest.mark.anyio


class Connection:
    """A connection."""

    host = ""
    gone = ended = False


async def test_a_search_that_waits_finds_nothing_that_new_rules_hide(tmp_path):
    user = Principal(name="ada", permissions=Permissions(Identity(name="ada"), None))
    router = SimpleNamespace(indexed=lambda _kind, _text: True, queues_at=lambda _address: None)
    async with await LocalStore.open(tmp_path) as store:
        parts = {"store": store, "finds": FindWaits(store), "router": router, "timer_secrets": TimerSecrets()}
        connection = Connection()
        waiting = asyncio.ensure_future(ask(connection, FindMessages(key="d", wait_ms=300), who=user, **parts))
        await asyncio.sleep(0.05)
        rule = AccessRule(effect="allow", filters=("open/#",))
        user.permissions.access = AccessRules(AccessConfig(default="deny", rules=(rule,))).access(Identity(name="ada"))
        await append(store, frame(Message("secret/1", b"1", device="d")))
        assert (await waiting).messages == []
        await append(store, frame(Message("open/1", b"2", device="d")))
        found = await ask(connection, FindMessages(key="d"), who=user, **parts)
        assert [one.body for one in found.messages] == [b"2"]
