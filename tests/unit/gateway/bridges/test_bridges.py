"""One process runs a bridge at a time, another when it ends, is killed, or is cut off."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from adapters.mqtt import FACTORY
from adapters.mqtt.messages.options import Options
from gateway.bridges import bridges as module
from gateway.bridges.bridges import Bridges
from gateway.bridges.shared.settings import BridgeConfig, BridgeSubscription
from gateway.bridges.shared.upstream_stream import UpstreamError
from gateway.domain.idempotency import digest
from gateway.ownership.owners import OwnershipLost
from store.base.errors import StoreUnreachable
from store.base.process_errors import ConfigError
from store.guards.rows import FENCES, epoch_in
from store.local.local import LocalStore
from tests.support.gateway.proxies_rig import Proxies
from tests.support.process.clock import Clock
from tests.support.process.ports import free_port
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


class Gate:
    crowded = False

    def __init__(self, proxy):
        self.owners = proxy.owners
        self.store = proxy.store
        self.spawn = proxy.spawn


class BridgeNode:
    """A proxy with a bridge to a port where nobody is: it runs all the same, and says so."""

    def __init__(self, proxy, port):
        self.proxy = proxy
        self.registry = CollectorRegistry()
        config = BridgeConfig(
            url=f"mqtt://127.0.0.1:{port}", reconnect_max_s=1.0, subscribe=(BridgeSubscription(filter="#"),)
        )
        self.bridges = make({"up": config}, Gate(proxy), self.registry)
        self.bridges.start()

    @property
    def here(self):
        return self.bridges.status()[0].here


def make(configs, gate, registry):
    return Bridges(
        configs,
        {"mqtt": (FACTORY, Options())},
        gate,
        store=lambda *_: None,
        registry=registry,
        now_ms=lambda: 0,
        message_bytes_max=1 << 20,
    )


class Bridging(Proxies):
    """Proxies that each have the bridge."""

    def __init__(self, store, clock):
        super().__init__(store, clock)
        self.port = free_port()

    async def node(self):
        return BridgeNode(await self.proxy(), self.port)

    async def pass_time(self, seconds, *living):
        await super().pass_time(seconds, *(node.proxy for node in living))


@pytest.fixture
async def cluster(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        cluster = Bridging(store, clock)
        yield cluster
        await cluster.die()


async def test_one_runs_it_and_hands_it_on_when_it_ends(cluster):
    one = await cluster.node()
    await until(lambda: one.here)
    other = await cluster.node()
    await until(lambda: other.bridges.status()[0].error == "")
    assert not other.here
    await one.bridges.stop()
    await until(lambda: other.here)
    assert not one.here


async def test_another_goes_on_when_it_is_killed(cluster):
    one = await cluster.node()
    await until(lambda: one.here)
    other = await cluster.node()
    await one.proxy.die()
    await cluster.pass_time(8, other)
    await until(lambda: other.here)


async def test_who_owns_nothing_any_more_runs_nothing_and_takes_it_again_when_it_is_back(cluster):
    one = await cluster.node()
    await until(lambda: one.here)
    one.proxy.owners._lose_ownership("the test says so")
    await until(lambda: not one.here)
    await cluster.pass_time(8, one)
    await until(lambda: one.here)


async def fence_of(cluster):
    entry = await cluster.store.keys.get(digest("bridge/up").hex(), namespace=FENCES)
    return epoch_in(entry.value)


async def test_who_takes_over_raises_the_fence_of_the_bridge_before_it_connects(cluster, monkeypatch):
    fences = []

    async def dial(*_):
        fences.append(await fence_of(cluster))
        raise UpstreamError("the test says so")

    monkeypatch.setattr(module, "dial", dial)
    one = await cluster.node()
    await until(lambda: fences)
    other = await cluster.node()
    former = fences[-1]
    await one.proxy.die()
    await cluster.pass_time(8, other)
    await until(lambda: other.here and fences[-1] > former)
    assert fences == sorted(fences)
    assert fences[-1] == other.bridges.runners["up"].bridge.fence.epoch
    assert set(fences) == {former, fences[-1]}


async def test_a_log_that_does_not_answer_keeps_no_bridge_from_running(cluster, monkeypatch):
    async def unreachable(*_):
        raise StoreUnreachable("the test says so")

    monkeypatch.setattr(module, "raise_fences", unreachable)
    one = await cluster.node()
    await until(lambda: one.here)
    assert one.bridges.runners["up"].bridge.fence.epoch > 0  # which its first frame there raises


async def test_who_is_told_of_a_later_owner_runs_nothing_and_looks_again(cluster, monkeypatch):
    one = await cluster.node()
    await until(lambda: one.here)
    keeper = one.bridges.runners["up"]
    run, lost = keeper.bridge.run, []

    async def fail(_fence, _owned):
        if not lost:
            lost.append(1)
            raise OwnershipLost("bridge/up")
        await run(_fence, _owned)

    keeper.bridge.run = fail
    await one.bridges.on_release_requested("bridge/up", None)
    await until(lambda: lost)
    await until(lambda: one.here)
    assert "internal" not in one.bridges.status()[0].error


async def test_the_figures_are_of_who_runs_it(cluster):
    one = await cluster.node()
    await until(lambda: one.here and one.bridges.status()[0].error)
    assert "is not reached" in one.bridges.status()[0].error
    text = generate_latest(one.registry).decode()
    assert 'headgate_bridge_connected{bridge="up"} 0.0' in text
    assert 'headgate_bridge_messages_total{bridge="up",status="stored"} 0.0' in text
    assert "last_message_age_seconds{" not in text  # there was none


async def test_a_failure_of_our_own_is_said_and_tried_again(cluster, monkeypatch):
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    one = await cluster.node()
    await until(lambda: one.here)
    keeper = one.bridges.runners["up"]
    run, failures = keeper.bridge.run, []

    async def fail(_fence, _owned):
        if not failures:
            failures.append(1)
            raise ZeroDivisionError
        await run()

    keeper.bridge.run = fail
    await one.bridges.on_release_requested("bridge/up", None)
    await until(lambda: failures)
    await until(lambda: one.here)


def test_a_scheme_that_no_adapter_speaks():
    with pytest.raises(ConfigError, match="no adapter speaks 'coap'"):
        make({"up": BridgeConfig(url="coap://x")}, None, CollectorRegistry())
