"""A proxy that goes on late, when another one has its sessions, does nothing that is not its own any more."""

import asyncio
from contextlib import aclosing
from types import SimpleNamespace

import pytest

from gateway.ownership.owner_keys import OwnerRecord, encode, owner_key
from gateway.port.sessions import Will
from gateway.queues.shared.subscriptions import SharedSubscriptions
from gateway.sessions.record import session_key
from store.api.message import Message
from store.base.errors import StoreUnreachable
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import Proxy, wills_in
from tests.support.process.clock import Clock
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

SESSION = session_key("mqtt", "dev")


@pytest.fixture
async def clock():
    return Clock()


@pytest.fixture
async def store(tmp_path, clock):
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        yield store


@pytest.fixture
async def proxies(store, clock):
    found = [await Proxy(store, clock, seed=seed).start() for seed in (1, 2)]
    yield found
    for proxy in found:
        await proxy.die()


async def unshare(name, unless):
    return False


def shared_of(proxy):
    """Returns the shared subscriptions of a proxy, without queues: the test looks at memberships only."""
    registry = SimpleNamespace(unshare=unshare, shared=[], queues={})
    shared = SharedSubscriptions(proxy.store, proxy.owners, registry, proxy.sessions, groups_max=10, spawn=proxy.spawn)
    proxy.sessions.ended = shared.ended
    return shared


async def join(shared, name):
    """Adds a member, as `SharedSubscriptions.join` writes it."""
    shared._joined[SESSION] = 1
    await shared._store.keys.transact({}, shared._joined_as(name, SESSION))


async def members(store):
    return len(await store.keys.prefix("shared/members/"))


async def hear_nothing(name, user):
    """Imitates a stopped process, which does not let go."""


class CutWatches:
    """The keys of a store, whose watches break while `cut` is set."""

    def __init__(self, keys):
        self._keys = keys
        self.cut = asyncio.Event()
        self.broken = 0

    def __getattr__(self, name):
        return getattr(self._keys, name)

    async def watch(self, *keys):
        cut = asyncio.ensure_future(self.cut.wait())
        async with aclosing(self._keys.watch(*keys)) as changes:
            try:
                while True:
                    change = asyncio.ensure_future(anext(changes))
                    await asyncio.wait([change, cut], return_when=asyncio.FIRST_COMPLETED)
                    if self.cut.is_set():
                        self.broken += 1
                        raise StoreUnreachable("the link is cut")
                    yield change.result()
            finally:
                change.cancel()
                cut.cancel()
                await asyncio.gather(change, cut, return_exceptions=True)


@pytest.mark.parametrize("there_still", [True, False])
async def test_a_connection_whose_session_was_taken_while_its_proxy_did_not_hear_of_it_ends(
    store, proxies, clock, there_still
):
    keys = CutWatches(store.keys)
    late = await Proxy(SimpleNamespace(keys=keys, groups=store.groups, logs=store.logs), clock, seed=3).start()
    other = proxies[0]
    holder, _ = await late.open()
    kept, _ = await late.open("kept")
    keys.cut.set()
    await until(lambda: keys.broken)
    taken, _ = await other.open()  # by force, and nothing of the request is left
    if not there_still:
        await other.close(taken)
    keys.cut.clear()
    await until(lambda: holder.superseded)
    assert (holder.superseded, kept.superseded, taken.superseded) == (1, 0, 0)
    assert late.sessions.key_of(kept) is not None
    await late.die()


async def test_the_end_of_a_connection_ends_no_membership_of_the_session_elsewhere(store, proxies):
    late, other = proxies
    late.sessions.on_release_requested = hear_nothing
    holder, _ = await late.open(expiry_s=0)
    await join(shared_of(late), "$share/g/a")
    await other.open(expiry_s=0)  # takes it by force
    await join(shared_of(other), "$share/g/a")
    await late.close(holder)
    assert await members(store) == 1


async def test_the_sweep_ends_no_membership_of_a_session_that_has_begun_meanwhile(store, proxies):
    late, _ = proxies
    shared = shared_of(late)
    await join(shared, "$share/g/a")
    there = shared.is_there

    async def looked_before(session):
        found = await there(session)
        await store.keys.put(owner_key(session), encode(OwnerRecord(session, "other")))
        return found

    shared.is_there = looked_before
    await shared.sweep()
    assert await members(store) == 1
    shared.is_there = there
    await store.keys.delete(owner_key(SESSION))
    await shared.sweep()
    assert await members(store) == 0


async def test_a_late_owner_publishes_no_will_of_a_session_that_goes_on_elsewhere(store, proxies):
    late, other = proxies
    late.sessions.on_release_requested = hear_nothing
    will = Will(message=Message("wills/x", b"late", protocol="mqtt"), delay_ms=0)
    holder, _ = await late.open(will=will)
    await other.open()
    assert await wills_in(store) == [b"late"]  # its connection was there, and is not any more: once
    await late.close(holder)
    assert await wills_in(store) == [b"late"]
