"""The owner of a session among several proxies: a user who is connected elsewhere hears nothing of other users."""

import asyncio

import pytest

from gateway.domain.session_user import NotItsUser, SessionUser
from gateway.ownership.owner_keys import (
    OwnerRecord,
    ReleaseRequest,
    decode_owner,
    encode,
    owner_key,
    release_request_key,
)
from gateway.port.sessions import SaveSession
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import TTL_S, Proxy
from tests.support.process.clock import Clock
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio

NAME = "sessions/mqtt/dev"
NOBODY = SessionUser()
ALICE, MALLORY = SessionUser("alice"), SessionUser("mallory")


class Two:
    """Two proxies of one store."""

    def __init__(self, store, clock):
        self.store, self.clock = store, clock
        self.one = Proxy(store, clock, seed=1, takeover_s=5.0)
        self.other = Proxy(store, clock, seed=2, takeover_s=5.0)

    async def entries(self):
        return [
            (entry.key, entry.revision)
            for entry in await self.store.keys.prefix("")
            if not entry.key.startswith(("proxies/alive", "proxies/heirs"))
        ]

    async def refuses(self, proxy, user, **asked):
        """Checks that a user who is not let in leaves nothing behind, and takes nothing for a moment either."""
        before = await self.entries()
        with pytest.raises(NotItsUser):
            await proxy.open(user=user, **asked)
        assert await self.entries() == before

    async def owner(self):
        entry = await self.store.keys.get(owner_key(NAME))
        return None if entry is None else decode_owner(entry.value)


@pytest.fixture
async def two(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        two = Two(store, clock)
        await two.one.start()
        await two.other.start()
        yield two
        await two.one.die()
        await two.other.die()


@pytest.mark.parametrize("who", [MALLORY, NOBODY])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("expiry_s", [0, None])
async def test_whoever_is_connected_elsewhere_is_left_alone(two, who, clean, expiry_s):
    alice, _ = await two.one.open(user=ALICE, expiry_s=expiry_s)
    await two.refuses(two.other, who, clean=clean)
    await two.refuses(two.one, who, clean=clean)
    assert (alice.superseded, alice.shut) == (0, 0)
    await two.one.sessions.save(alice, SaveSession(state=b"hers", expiry_s=None))
    await two.one.close(alice)
    await two.refuses(two.other, who, clean=clean)
    _, opened = await two.other.open(user=ALICE)
    assert opened.state == b"hers"


async def test_its_user_takes_it_over_elsewhere(two):
    first, _ = await two.one.open(user=ALICE)
    second, opened = await two.other.open(user=ALICE)
    assert (first.superseded, second.superseded, opened.present) == (1, 0, True)
    assert await two.owner() == OwnerRecord(NAME, two.other.owners.id, ALICE)
    await two.refuses(two.one, MALLORY)
    third, opened = await two.one.open(user=ALICE, clean=True, expiry_s=0)
    assert (second.superseded, opened.present) == (1, False)
    await two.refuses(two.other, MALLORY)
    await two.one.close(third)
    await two.other.open(user=MALLORY)


@pytest.mark.parametrize("expiry_s", [0, None])
async def test_a_session_without_a_name_is_of_whoever_takes_it(two, expiry_s):
    """Here, where nobody has to be asked for it, or elsewhere."""
    nobody, _ = await two.one.open(user=NOBODY, expiry_s=expiry_s)
    alice, _ = await two.one.open(user=ALICE, expiry_s=expiry_s)
    assert nobody.superseded == 1
    await two.refuses(two.other, MALLORY)
    await two.refuses(two.other, NOBODY)
    await two.one.close(alice)
    if expiry_s is None:
        await two.refuses(two.other, NOBODY)
        return
    nobody, _ = await two.one.open(user=NOBODY, expiry_s=0)
    await two.other.open(user=ALICE, expiry_s=0)
    assert nobody.superseded == 1
    await two.refuses(two.one, MALLORY)


async def test_who_asks_too_late_is_refused(two, monkeypatch):
    """The session was anybody's when it was asked for, and is somebody's when its proxy hears of that."""
    nobody, _ = await two.one.open(user=NOBODY, expiry_s=0)
    heard, wanted = asyncio.Event(), two.one.sessions.on_release_requested

    async def late(name, user):
        await heard.wait()
        await wanted(name, user)

    monkeypatch.setattr(two.one.sessions, "on_release_requested", late)
    two.other.owners.takeover_s = 0.2
    mallory = asyncio.ensure_future(two.other.open(user=MALLORY))
    await until(lambda: two.store.keys.get(release_request_key(NAME)))
    alice, _ = await two.one.open(user=ALICE, expiry_s=0)
    assert nobody.superseded == 1
    heard.set()
    with pytest.raises(NotItsUser):
        await mallory
    assert alice.superseded == 0
    assert (await two.owner()).user == ALICE
    await two.one.sessions.save(alice, SaveSession(state=b"hers", expiry_s=None))


async def test_a_session_that_was_begun_while_somebody_looked_for_it(two, monkeypatch):
    """A look at a name before it is taken may be out of date when it is."""
    take = two.other.owners.take

    async def slow(name, **asked):
        holder, _ = await two.one.open(user=ALICE)
        await two.one.close(holder)
        return await take(name, **asked)

    monkeypatch.setattr(two.other.owners, "take", slow)
    with pytest.raises(NotItsUser):
        await two.other.open(user=MALLORY)
    monkeypatch.undo()
    assert two.other.sessions.held == {}
    assert await two.owner() is None
    _, opened = await two.other.open(user=ALICE)
    assert opened.present


@pytest.mark.slow
async def test_what_a_dead_proxy_has_left_is_its_users(two):
    alice, _ = await two.one.open(user=ALICE)
    await two.one.sessions.save(alice, SaveSession(state=b"hers", expiry_s=None))
    await two.one.die()
    await two.refuses(two.other, MALLORY)
    for _ in range(int(TTL_S) + 1):
        two.clock.ms += 1_000
        await two.other.owners.renew()
    await two.store.keys.look()
    await two.refuses(two.other, MALLORY)
    await until(lambda: _inherited(two))
    await two.refuses(two.other, MALLORY)
    _, opened = await two.other.open(user=ALICE)
    assert opened.state == b"hers"


async def _inherited(two):
    return await two.owner() is None


async def test_a_session_that_ended_with_its_proxy_is_anybodys(two):
    await two.one.open(user=ALICE, expiry_s=0)
    await two.one.die()
    await two.refuses(two.other, MALLORY)
    for _ in range(int(TTL_S) + 1):
        two.clock.ms += 1_000
        await two.other.owners.renew()
    await two.store.keys.look()
    await two.other.open(user=MALLORY)


async def test_a_proxy_of_before_is_given_what_it_asks_for(two):
    """It does not say for whom, and would take it by force."""
    alice, _ = await two.one.open(user=ALICE)
    await two.store.keys.put(
        release_request_key(NAME), encode(ReleaseRequest(NAME, two.other.owners.id, two.one.owners.id))
    )
    await until(lambda: alice.superseded)
    await until(lambda: _owned_by(two, two.other))


async def _owned_by(two, proxy):
    return (await two.owner()) == OwnerRecord(NAME, proxy.owners.id)


async def test_a_connect_reads_no_more_than_it_has_to(two, monkeypatch):
    read, kv_get = [], two.store.keys.get

    async def counted(key, **named):
        read.append(key)
        return await kv_get(key, **named)

    monkeypatch.setattr(two.store.keys, "get", counted)
    holder, _ = await two.one.open(user=ALICE, clean=True, expiry_s=0)
    assert read.count(NAME) == 1
    assert owner_key(NAME) not in read
    await two.one.close(holder)
    await two.one.close((await two.one.open(user=ALICE))[0])
    read.clear()
    await two.other.open(user=ALICE)
    assert read.count(NAME) == 1
    assert owner_key(NAME) not in read
