"""`$SYS/broker`: what there is, averages, and what a filter brings of it."""

import asyncio
import math
from types import SimpleNamespace

import pytest

from gateway.domain.filters import is_sys
from gateway.ops.metrics import Metrics
from gateway.port.reads import Retained
from gateway.runtime.sys_topics import COUNT_INTERVAL_MS, Load, SysTopics
from store.base.errors import StoreUnreachable

pytestmark = pytest.mark.anyio


class CountedStore:
    pending_bytes = 5
    confirmed = 1_000

    def __init__(self):
        self.log = self.keys = self  # its subjects
        self.counts = {"sessions/mqtt/": 7, "retained/": 3}
        self.asked = 0

    async def count(self, start, end):
        assert end == start[:-1] + "0"
        self.asked += 1
        return self.counts[start]


class SysTopicsHub:
    """The part of a hub that `$SYS` looks at."""

    def __init__(self):
        self.store = CountedStore()
        self.metrics = Metrics(process=False)
        self.fanout = SimpleNamespace(subscription_count=4)
        self.queues = SimpleNamespace(registry=SimpleNamespace(shared_count=2))
        self.tasks = []

    def spawn(self, work):
        self.tasks.append(asyncio.ensure_future(work))


class SysTopicsRig:
    def __init__(self):
        self.now_ms = 1_000_000
        self.hub = SysTopicsHub()
        self.sys = SysTopics(self.hub, node="n1", now_ms=lambda: self.now_ms)

    def page(self, pattern, **options):
        found = self.sys.page(Retained(pattern=pattern), **options)
        assert found.after is None
        return {one.address.removeprefix("$SYS/broker/"): one.body.decode() for one in found.messages}


@pytest.fixture
async def rig():
    return SysTopicsRig()


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [("$SYS", True), ("$SYS/#", True), ("$SYS/+", True), ("$SYSTEM/#", False), ("#", False), ("+/broker/#", False)],
)
def test_which_filters_ask_for_it(pattern, wanted):
    assert is_sys(pattern) is wanted


async def test_what_there_is(rig):
    metrics = rig.hub.metrics
    metrics.messages_in("mqtt", "t", "stored").inc(10)
    metrics.messages_in("mqtt", "u", "forbidden").inc(2)
    metrics.messages_in("http", "t", "stored").inc(100)
    metrics.sent(metrics.flow("mqtt"), "t", 30)
    flow = metrics.flow("mqtt")
    flow.bytes_in, flow.bytes_out, flow.open = 1_000, 3_000, 5
    metrics.flow("amqp").open = 1
    rig.now_ms += 61_500
    found = rig.page("$SYS/#")
    assert found.pop("version").startswith("headgate ")
    assert {name: value for name, value in found.items() if not name.startswith("load/")} == {
        "node": "n1",
        "uptime": "61 seconds",
        "clients/connected": "5",
        "clients/maximum": "5",
        "messages/received": "12",
        "messages/sent": "30",
        "publish/messages/received": "12",
        "publish/messages/sent": "30",
        "publish/messages/dropped": "2",
        "bytes/received": "1000",
        "bytes/sent": "3000",
        "subscriptions/count": "4",
        "shared_subscriptions/count": "2",
        "store/pending/bytes": "5",
        "store/log/bytes": "1000",
    }
    flow.open -= 3
    found = rig.page("$SYS/broker/clients/+")
    assert (found["clients/connected"], found["clients/maximum"]) == ("2", "5")


async def test_messages_are_retained_and_of_qos_0(rig):
    (message,) = rig.sys.page(Retained(pattern="$SYS/broker/node")).messages
    assert (message.address, message.body, message.qos, message.retain) == ("$SYS/broker/node", b"n1", 0, True)


async def test_what_is_counted_one_by_one_is_counted_seldom(rig):
    assert "clients/total" not in rig.page("$SYS/#")
    await asyncio.gather(*rig.hub.tasks)
    found = rig.page("$SYS/#")
    assert (found["clients/total"], found["retained messages/count"]) == ("7", "3")
    assert rig.hub.store.asked == 2
    rig.now_ms += COUNT_INTERVAL_MS
    rig.page("$SYS/#")
    await asyncio.gather(*rig.hub.tasks)
    assert rig.hub.store.asked == 4


async def test_a_store_out_of_reach_leaves_its_own_values_out(rig, monkeypatch):
    async def fail(*_):
        raise StoreUnreachable("no")

    def raise_():
        raise StoreUnreachable("no")

    monkeypatch.setattr(rig.hub.store.keys, "count", fail)
    monkeypatch.setattr(CountedStore, "confirmed", property(lambda _: raise_()))
    found = rig.page("$SYS/#")
    await asyncio.gather(*rig.hub.tasks)
    assert "store/log/bytes" not in found
    assert "node" in found


async def test_only_what_may_be_read(rig):
    found = rig.page("$SYS/#", readable=lambda address: address.endswith("/node"))
    assert found == {"node": "n1"}


async def test_averages(rig):
    rig.hub.metrics.messages_in("mqtt", "t", "stored").inc(100)
    rig.hub.metrics.flow("mqtt").accepted += 6
    rig.now_ms += 10_000
    await rig.sys.sample()
    found = rig.page("$SYS/broker/load/#")
    kept = math.exp(-1 / 6)
    assert found["load/messages/received/1min"] == f"{600 * (1 - kept):.2f}"
    assert float(found["load/connections/1min"]) == pytest.approx(36 * (1 - kept), abs=0.01)
    assert float(found["load/messages/received/15min"]) < float(found["load/messages/received/5min"])
    for _ in range(100):
        rig.now_ms += 10_000
        await rig.sys.sample()
    assert rig.page("$SYS/broker/load/messages/received/1min")["load/messages/received/1min"] == "0.00"


def test_an_even_load_is_what_it_is():
    load, total = Load(), 0
    for _ in range(1_000):
        total += 50
        load.sample(total, 10.0)
    assert dict(load.items()) == {"1min": "300.00", "5min": "300.00", "15min": "300.00"}
    load.sample(total, 0.0)  # a clock that stands still changes nothing
    assert dict(load.items())["1min"] == "300.00"
