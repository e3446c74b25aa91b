"""While the home group is not served nobody takes over and nobody gives up; a proxy that is cut off alone does."""

import asyncio

import pytest
import structlog

from controller.api.client import OUTAGE_LEASE_MS, ControllerUnreachable, Group, Replica
from controller.elections.registry import Heartbeat, Registry
from controller.elections.serving import Serving
from gateway.ownership import cluster_owners, owner_keys
from gateway.ownership.owners import OwnershipLost
from gateway.port.sessions import SaveSession, Will
from store.api.message import Message
from store.base.errors import StoreUnreachable
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import TTL_S, Proxies, wills_in
from tests.support.process.clock import Clock
from tests.support.process.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OUTAGE_S = 60.0
HOME = Group(
    number=0,
    replicas=(Replica(id=1, node="n1", address="n1:1"),),
    master=1,
    master_epoch=1,
    sync_set=(1,),
    sync_epoch=1,
)


class Home:
    """The home group as the controllers' leader hears it, and the leader."""

    def __init__(self, clock):
        self.clock = clock
        self.registry = Registry(clock.ms)
        self.serving = Serving(self.registry)
        self.served, self.silent = True, False

    def beat(self):
        said = Heartbeat(group=0, replica=1, node="n1", address="n1:1", master=True, master_epoch=1)
        if self.served:
            self.registry.heartbeat(said, self.clock.ms)

    async def service(self):
        if self.silent:
            raise ControllerUnreachable("nobody answers")
        return self.serving.ask(0, HOME, self.clock.ms)


class Cut:
    """A store as a proxy sees it that may not reach its keys."""

    def __init__(self, store):
        self._store = store
        self.keys = CutKeys(self, store.keys)
        self.off = False

    def __getattr__(self, name):
        return getattr(self._store, name)


class CutKeys:
    def __init__(self, cut, keys):
        self._cut, self._keys = cut, keys

    def __getattr__(self, name):
        found = getattr(self._keys, name)
        if name == "watch":
            return found

        async def call(*arguments, **options):
            if self._cut.off:
                raise StoreUnreachable("nobody answers")
            return await found(*arguments, **options)

        return call


class ProxiesWithHome(Proxies):
    """Proxies that ask whether the home group is served."""

    def __init__(self, store, clock):
        super().__init__(store, clock)
        self.home = Home(clock)

    async def proxy(self):
        return await super().proxy(store=Cut(self.store), service=self.home.service, outage_s=OUTAGE_S)

    def outage(self, off):
        self.home.served = not off
        for proxy in self.proxies:
            proxy.store.off = off

    async def pass_time(self, seconds, *living):
        for _ in range(int(seconds * 4)):
            self.clock.ms += 250
            self.home.beat()
            for proxy in living:
                await proxy.owners.outage_lease.look()
                await proxy.owners.renew()
        await self.store.keys.look()

    async def heirs(self):
        return await self.keys("proxies/heirs")


@pytest.fixture
async def cluster(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        found = ProxiesWithHome(store, clock)
        found.home.serving.began(clock.ms - OUTAGE_LEASE_MS)
        found.home.beat()
        yield found
        await found.die()


@pytest.fixture
async def two(cluster):
    return cluster, await cluster.proxy(), await cluster.proxy()


async def test_an_outage_of_the_home_group_ends_no_connection(two):
    cluster, one, other = two
    held = [(await proxy.open(f"dev{n}"))[0] for n, proxy in enumerate((one, other))]
    names = [proxy.owners.id for proxy in (one, other)]
    cluster.outage(True)
    await cluster.pass_time(30, one, other)
    assert [one.shut for one in held] == [0, 0]
    assert await cluster.store.keys.prefix("proxies/alive") == []  # the store's clock went on
    cluster.outage(False)
    await cluster.pass_time(3 * TTL_S, one, other)
    assert [one.shut for one in held] == [0, 0]
    assert [proxy.owners.id for proxy in (one, other)] == names
    assert await cluster.heirs() == []
    for proxy, holder in zip((one, other), held, strict=True):
        await proxy.close(holder)


async def test_an_outage_is_said_when_it_begins_and_when_it_ends(two):
    _cluster, one, _other = two
    with structlog.testing.capture_logs() as lines:
        for _ in range(2):
            one.store.off = True
            for _ in range(4):
                await one.owners.renew()
            one.store.off = False
            await one.owners.renew()
            await one.owners.renew()
    said = [(line["log_level"], line["event"]) for line in lines if "presence key" in line["event"]]
    begun = "this proxy's presence key could not be renewed"
    still = ("debug", begun)
    assert said == [("warning", begun), still, still, still, ("info", "this proxy's presence key is renewed again")] * 2


async def test_a_proxy_that_is_cut_off_alone_stops_in_time(two):
    cluster, one, other = two
    held, _ = await one.open()
    one.store.off = True
    await cluster.pass_time(TTL_S - 0.25, one, other)
    assert held.shut == 0
    await cluster.pass_time(0.25, one, other)
    await until(lambda: held.shut == 1)


async def test_nobody_goes_on_for_ever(two):
    cluster, one, other = two
    held, _ = await one.open()
    cluster.outage(True)
    await cluster.pass_time(OUTAGE_S, one, other)
    assert held.shut == 0
    await cluster.pass_time(TTL_S, one, other)
    await until(lambda: held.shut == 1)


@pytest.mark.parametrize("silent", [False, True])
async def test_without_the_controllers_word_a_proxy_stops_as_ever(two, silent):
    cluster, one, other = two
    held, _ = await one.open()
    cluster.home.silent = silent
    one.store.off = other.store.off = True  # and the home group is served, for all that anybody can say
    await cluster.pass_time(TTL_S, one, other)
    await until(lambda: held.shut == 1)


@pytest.mark.parametrize("silent", [False, True])
async def test_what_a_proxy_leaves_that_ends_in_an_outage_is_done_after_it(two, silent):
    """Not before it is certain that the proxy has ended: by the leader's word, or when the longest outage is over."""
    cluster, one, other = two
    await one.open(will=Will(message=Message("w", b"gone"), delay_ms=0))
    cluster.outage(True)
    await cluster.pass_time(2, one, other)
    await one.die()
    await cluster.pass_time(20, other)
    cluster.outage(False)
    cluster.home.silent = silent
    wait_s = OUTAGE_S if silent else OUTAGE_LEASE_MS / 1_000
    begun_ms = cluster.clock.ms

    async def published():
        await cluster.pass_time(1, other)
        return await wills_in(cluster.store)

    await until(published, timeout_s=90)
    assert cluster.clock.ms - begun_ms >= wait_s * 1_000 - 2_000
    assert await wills_in(cluster.store) == [b"gone"]


async def test_a_name_is_not_taken_at_once_from_who_may_go_on_after_an_outage(two, monkeypatch):
    """Its key has expired, and it does not know yet that the home group is back."""
    monkeypatch.setattr(cluster_owners, "RENEW_RETRY_S", 30.0)
    cluster, one, other = two
    other.owners.takeover_s = 30.0
    held, _ = await one.open()
    cluster.outage(True)
    await cluster.pass_time(20, one, other)
    cluster.outage(False)
    await cluster.pass_time(0.5, other)
    assert one.owners.presence.remaining_s > 0
    asked = []
    ask = other.owners._ask
    monkeypatch.setattr(other.owners, "_ask", lambda record: asked.append(record.of) or ask(record))
    await other.open()
    assert asked == [one.owners.id]
    assert held.superseded == 1  # by its own proxy


async def test_a_name_of_who_is_gone_for_certain_is_taken_at_once(two):
    cluster, one, other = two
    other.owners.takeover_s = 30.0
    await one.open()
    await one.die()
    await cluster.pass_time(2 * TTL_S, other)
    async with asyncio.timeout(60):
        await other.open()
    assert await cluster.store.keys.prefix("proxies/wanted") == []


async def test_who_was_seen_to_be_gone_and_came_back_is_waited_for_anew(two):
    cluster, _one, other = two
    cluster.home.silent = True
    outage_lease = other.owners.outage_lease
    assert not await outage_lease.may_take_over("x")
    cluster.clock.ms += int(OUTAGE_S) * 1_000
    assert await outage_lease.may_take_over("x")
    await cluster.store.keys.put("proxies/alive/x", b"")
    await until(lambda: "x" not in outage_lease._gone_s)
    assert not await outage_lease.may_take_over("x")


async def test_what_a_session_writes_waits_as_long_as_it_is_ours(two, monkeypatch):
    monkeypatch.setattr(owner_keys, "AGAIN_MAX_S", 0.01)
    cluster, one, other = two
    held, _ = await one.open(expiry_s=None)
    cluster.outage(True)
    saving = asyncio.ensure_future(one.sessions.save(held, SaveSession(state=b"kept", exchanges=None, expiry_s=None)))
    await cluster.pass_time(20, one, other)
    assert not saving.done()
    cluster.outage(False)
    await saving
    await one.close(held)
    _, opened = await other.open(expiry_s=None)
    assert opened.state == b"kept"


async def test_what_a_session_writes_is_given_up_with_the_name(two, monkeypatch):
    monkeypatch.setattr(owner_keys, "AGAIN_MAX_S", 0.01)
    cluster, one, other = two
    held, _ = await one.open(expiry_s=None)
    one.store.off = True
    saving = asyncio.ensure_future(one.sessions.save(held, SaveSession(state=b"lost", exchanges=None, expiry_s=None)))
    await cluster.pass_time(TTL_S, one, other)
    with pytest.raises(OwnershipLost):
        await saving
