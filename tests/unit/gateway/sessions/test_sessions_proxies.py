"""Sessions of several proxies: one owner at a time, takeovers, proxies that are gone, and their wills."""

import asyncio
from types import SimpleNamespace

import pytest

from gateway.domain.errors import Refusal
from gateway.ownership.owners import OwnershipLost, Taken
from gateway.port.adapter import SubscriptionId
from gateway.port.sessions import SaveSession, Will
from store.api.message import Message
from store.base.errors import RevisionConflict, StoreUnreachable
from store.format.frame import Position
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import TTL_S, Proxies, wills_in
from tests.support.process.clock import Clock
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OWNER = "owners/sessions/mqtt/dev"


@pytest.fixture
async def cluster(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        cluster = Proxies(store, clock)
        yield cluster
        await cluster.die()


@pytest.fixture
async def two(cluster):
    return cluster, await cluster.proxy(), await cluster.proxy()


def will(delay_ms=0, body=b"gone"):
    return Will(message=Message("w", body), delay_ms=delay_ms)


async def test_a_session_is_taken_over_by_another_proxy(two):
    cluster, one, other = two
    first, opened = await one.open()
    assert not opened.present
    await one.sessions.save(first, SaveSession(state=b"s", exchanges=b"e", expiry_s=None))
    second, opened = await other.open()
    assert first.superseded == 1
    assert (opened.present, opened.state, opened.exchanges) == (True, b"s", b"e")
    await one.sessions.save(first, SaveSession(state=b"too late", expiry_s=None))
    await other.close(second)
    _, opened = await one.open()
    assert opened.state == b"s"
    assert await cluster.keys("proxies/wanted") == []


async def test_who_leaves_lets_go_of_the_name(two):
    cluster, one, other = two
    for proxy in (one, other, one):
        holder, _ = await proxy.open(expiry_s=0)
        assert await cluster.keys("owners") == [OWNER]
        await proxy.close(holder)
        assert holder.superseded == 0
        assert await cluster.keys("owners") == []


async def test_deliveries_go_on_elsewhere_where_they_were(two):
    _, one, other = two
    holder, opened = await one.open()
    one.sessions.settled(holder, (Position(4_096, 3),))
    assert opened.cursor is None
    one.fanout.subscribe(holder.subscriber, SubscriptionId(1), "t", None)
    held = one.sessions.by_holder[holder]
    held.settled = (Position(8_192, 5),)
    await one.sessions.commit()
    _, opened = await other.open()
    assert opened.cursor[0] >= Position(8_192, 5)


async def test_a_proxy_that_does_not_let_go_loses_the_name(two, monkeypatch):
    _, one, other = two
    first, _ = await one.open()

    async def busy(_name, _user):
        await asyncio.sleep(60)

    monkeypatch.setattr(one.sessions, "on_release_requested", busy)
    _, opened = await other.open()
    assert opened.present
    with pytest.raises(OwnershipLost):
        await one.sessions.save(first, SaveSession(state=b"too late", expiry_s=None))
    assert first.superseded == 1
    await one.close(first)
    third, opened = await one.open(clean=False)
    assert opened.state == b""
    assert third.superseded == 0


async def test_a_late_owner_changes_nothing(two):
    cluster, one, other = two
    first, _ = await one.open(will=will())
    one.sessions.settled(first, ())
    await one.die()
    await cluster.pass_time(TTL_S + 1, other)
    await until(lambda: wills_in(cluster.store))
    second, _ = await other.open()
    await other.sessions.save(second, SaveSession(state=b"new", expiry_s=None))
    before = {entry.key: entry.value for entry in await cluster.store.keys.prefix("session")}
    cluster.clock.ms -= 60_000  # its own clock says that all is well
    one.owners.presence.present = True
    held = one.sessions.by_holder[first]
    held.settled = (Position(1 << 40, 0),)
    await one.sessions.commit()
    assert first.superseded == 1
    with pytest.raises(OwnershipLost):
        await held.owned.write(cursor={0: 1})
    await one.sessions.close(first)
    cluster.clock.ms += 60_000
    assert {entry.key: entry.value for entry in await cluster.store.keys.prefix("session")} == before
    assert await wills_in(cluster.store) == [b"gone"]


async def test_the_sessions_of_a_proxy_that_is_gone_go_on_elsewhere(two):
    cluster, one, other = two
    first, _ = await one.open()
    await one.sessions.save(first, SaveSession(state=b"s", expiry_s=None))
    await one.die()
    await cluster.pass_time(TTL_S + 1, other)
    _, opened = await other.open()
    assert opened.state == b"s"


async def test_a_session_whose_proxy_is_gone_expires_from_then_on(two):
    cluster, one, other = two
    await one.open(expiry_s=100)
    await cluster.pass_time(150, one, other)
    assert await other.sessions.sweep() == 0
    await one.die()
    await cluster.pass_time(TTL_S + 1, other)
    await until(lambda: none_of(cluster.keys("owners")))
    assert await other.sessions.sweep() == 0
    await cluster.pass_time(100, other)
    assert await other.sessions.sweep() == 1


async def none_of(keys):
    return not await keys


async def test_a_proxy_that_is_not_heard_of_ends_its_sessions_before_others_may_take_them(two, monkeypatch):
    cluster, one, other = two
    first, _ = await one.open()
    put = cluster.store.keys.put

    async def cut_off(key, *args, **options):
        if key.endswith(one.owners.presence.id):
            raise StoreUnreachable("nobody answers")
        return await put(key, *args, **options)

    monkeypatch.setattr(cluster.store.keys, "put", cut_off)
    await cluster.pass_time(TTL_S - 1, one, other)
    assert first.shut == 0
    cluster.clock.ms += 999
    await one.owners.renew()
    assert first.shut == 0
    cluster.clock.ms += 1
    await one.owners.renew()
    await until(lambda: first.shut == 1)
    with pytest.raises(Refusal):
        await one.open("somebody else")
    monkeypatch.undo()
    await one.owners.renew()
    _, opened = await one.open("somebody else")
    assert not opened.present
    await cluster.store.keys.look()
    _, opened = await other.open()
    assert opened.present


async def test_a_proxy_whose_key_has_expired_comes_back_before_anybody_inherits(two):
    """As after an outage of the store, in which it could hear nobody and the time went on."""
    cluster, one, other = two
    held, _ = await one.open()
    await cluster.pass_time(TTL_S - 1, one, other)
    await cluster.store.keys.delete(f"proxies/alive/{one.owners.id}")
    await cluster.store.keys.delete(f"proxies/alive/{other.owners.id}")
    await other.owners.renew()
    assert not other.owners.presence.settled  # its own key was not renewed, so it inherits nothing for a while
    await one.owners.renew()
    await cluster.pass_time(TTL_S + 1, one, other)
    assert held.shut == 0
    assert await cluster.keys("proxies/heirs") == []
    assert {f"proxies/alive/{proxy.owners.id}" for proxy in (one, other)} == set(await cluster.keys("proxies/alive"))
    await one.close(held)


async def test_either_a_proxy_is_back_or_it_has_a_successor(two):
    cluster, one, other = two
    mine, its = one.owners.presence, other.owners.presence
    with pytest.raises(RevisionConflict):
        await its.take_over(mine.id, expected_revision=0)  # it is there
    await cluster.store.keys.delete(f"proxies/alive/{mine.id}")
    back, successor = await asyncio.gather(
        mine.renew(), its.take_over(mine.id, expected_revision=0), return_exceptions=True
    )
    assert sorted(isinstance(one, RevisionConflict) for one in (back, successor)) == [False, True]
    await cluster.store.keys.delete(f"proxies/alive/{mine.id}")
    await its.taken_over(mine.id)
    with pytest.raises(RevisionConflict):  # also when all is done that it has left
        await mine.renew()


async def test_a_proxy_that_the_others_take_for_dead_begins_anew(two):
    cluster, one, _other = two
    first, _ = await one.open()
    before = one.owners.presence.id
    await cluster.store.keys.delete(f"proxies/alive/{before}")
    await cluster.store.keys.put(f"proxies/heirs/{before}", b"another")
    await one.owners.renew()
    await until(lambda: first.shut == 1)
    await one.owners.renew()
    assert one.owners.presence.id != before
    _, opened = await one.open()
    assert opened.present


@pytest.mark.parametrize(
    ("clean", "delay_ms", "count"), [(False, 0, 1), (True, 0, 1), (False, 30_000, 0), (True, 30_000, 1)]
)
async def test_whether_a_takeover_elsewhere_publishes_the_will(two, clean, delay_ms, count):
    cluster, one, other = two
    await one.open(will=will(delay_ms))
    await other.open(clean=clean)
    assert await wills_in(cluster.store) == [b"gone"] * count
    assert await cluster.store.timers.entries() == []
    assert await cluster.keys("session-wills") == []


@pytest.mark.parametrize("survivors", [1, 3])
async def test_wills_of_a_proxy_that_is_gone_are_published_once(cluster, survivors):
    dead = await cluster.proxy()
    living = [await cluster.proxy() for _ in range(survivors)]
    for n in range(20):
        await dead.open(f"c{n}", expiry_s=n % 2 * 100, will=will(body=b"%d" % n))
    await dead.open("calm", expiry_s=0)
    await dead.die()
    assert await wills_in(cluster.store) == []
    await cluster.pass_time(TTL_S + 1, *living)
    await until(lambda: none_of(cluster.keys("owners")))
    assert sorted(await wills_in(cluster.store)) == sorted(b"%d" % n for n in range(20))
    assert await cluster.keys("session-wills") == []
    await cluster.pass_time(2 * TTL_S + 1, *living)
    await until(lambda: none_of(cluster.keys("proxies/heirs")))


async def test_a_will_with_a_delay_waits_on_behalf_of_a_proxy_that_is_gone(two):
    cluster, one, other = two
    await one.open(will=will(30_000))
    await one.open("stays away", will=will(30_000, b"away"))
    await one.die()
    await cluster.pass_time(TTL_S + 1, other)
    await until(lambda: none_of(cluster.keys("owners")))
    assert len(await cluster.store.timers.entries()) == 2
    await other.open()
    (timer,) = await cluster.store.timers.entries()
    assert timer.due_ms == cluster.clock.ms + 30_000
    assert await wills_in(cluster.store) == []


@pytest.mark.parametrize("stored", [False, True])
async def test_an_heir_that_dies_in_the_middle_has_an_heir(cluster, stored):
    dead = await cluster.proxy()
    await dead.open(will=will())
    await dead.open("delayed", will=will(30_000, b"later"))
    successor = await cluster.proxy()
    dying = asyncio.Event()
    deaf = SimpleNamespace(published=lambda *_: None, principal=None)

    def last_act(effect):
        if stored:
            successor.on_publish = None
            successor.publish(deaf, effect, 0)
            successor.on_publish = last_act
        dying.set()
        return True

    successor.on_publish = last_act
    await dead.die()
    await cluster.pass_time(TTL_S + 1, successor)
    await dying.wait()
    await successor.die()
    last = await cluster.proxy()
    await cluster.pass_time(TTL_S + 1, last)
    await until(lambda: none_of(cluster.keys("owners")))
    assert await wills_in(cluster.store) == [b"gone"]
    assert len(await cluster.store.timers.entries()) == 1


async def test_a_proxy_ends_well(two):
    cluster, one, _other = two
    holder, _ = await one.open(will=will())
    await one.close(holder)
    await one.owners.close()
    await until(lambda: none_of(cluster.keys("owners")))
    assert len(await cluster.keys("proxies/alive")) == 1
    assert await wills_in(cluster.store) == [b"gone"]


async def test_a_name_that_is_not_to_be_waited_for(two):
    _, one, other = two
    owned = await one.owners.take("queues/x", wait=False)
    with pytest.raises(Taken):
        await other.owners.take("queues/x", wait=False)
    await owned.release()
    await other.owners.take("queues/x", wait=False)


async def test_the_newest_who_asks_is_given_the_name(cluster, monkeypatch):
    owner, early, late = [await cluster.proxy(takeover_s=5.0) for _ in range(3)]
    holder, _ = await owner.open()
    letting_go = asyncio.Event()
    wanted = owner.sessions.on_release_requested

    async def slow(name, user):
        await letting_go.wait()
        await wanted(name, user)

    monkeypatch.setattr(owner.sessions, "on_release_requested", slow)
    first = asyncio.ensure_future(early.open())
    await until(lambda: cluster.keys("proxies/wanted"))
    second = asyncio.ensure_future(late.open())
    with pytest.raises(Taken):
        await first
    letting_go.set()
    _, opened = await second
    assert opened.present
    assert holder.superseded == 1


async def test_many_connections_at_many_proxies_leave_one_holder(cluster):
    proxies = [await cluster.proxy(takeover_s=1.0) for _ in range(3)]
    opened = await asyncio.gather(*[proxies[n % 3].open() for n in range(12)], return_exceptions=True)
    holders = [one[0] for one in opened if not isinstance(one, BaseException)]
    assert all(isinstance(one, Taken | OwnershipLost) for one in opened if isinstance(one, BaseException))
    await until(lambda: sum(not holder.superseded for holder in holders) == 1)
    holding = [proxy for proxy in proxies if proxy.sessions.held]
    assert len(holding) == 1
