"""A cluster whose links fail in one direction: who does not need the link goes on, and afterwards everybody does.

Each proxy has clients of every kind, which stay with it. For each cut the test prints how long each client was
acknowledged nothing, and what all processes said of themselves. HEADGATE_CUTS chooses among the cuts, by their names.
"""

import asyncio
import contextlib
import os
import threading
import time

import httpx
import pytest

from controller.api.commands import CreateTopic
from gateway.process.local_cluster import ClusterPlan, nodes
from tests.support.cluster.fault_run import FaultRun
from tests.support.cluster.local_clusters import all_groups, controller_of, started
from tests.support.cluster.masters import only_master
from tests.support.cluster.network import Network, missing

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1800)]

CUT_S = 12.0  # longer than the 10 s that a proxy has for a request
AFTER_S = 5.0  # for which clients are watched when a link is whole again
SAMPLE_S = 0.2
SERVED_S = 1.0  # a client is served as long as it waits no longer for an acknowledgement
UNTRUE_S = 4.0  # for which a proxy may say that it is not ready while all of its clients are served

# From whom packets are dropped, and to whom. The links of "one" are those of one proxy, the other has them all.
CUTS = {
    "master->replica": ("master", "replica"),
    "replica->master": ("replica", "master"),
    "one->master": ("one", "master"),
    "master->one": ("master", "one"),
    "proxies->master": ("proxies", "master"),
    "master->proxies": ("master", "proxies"),
    "master->controllers": ("master", "controllers"),
    "controllers->master": ("controllers", "master"),
    "one->controllers": ("one", "controllers"),
    "controllers->one": ("controllers", "one"),
}
CHOSEN = [one for one in os.environ.get("HEADGATE_CUTS", "").split(",") if one] or list(CUTS)


class Watch(threading.Thread):
    """Asks every process what it says of itself, again and again; prints what is new."""

    def __init__(self, cluster):
        super().__init__(name="watch", daemon=True)
        self.unready_since = {}  # by process
        self._cluster, self._ended, self._words = cluster, threading.Event(), {}
        self._began = 0.0

    def seconds(self):
        return time.monotonic() - self._began

    def run(self):
        self._began = time.monotonic()
        with httpx.Client(timeout=2, trust_env=False) as client:
            while not self._ended.wait(SAMPLE_S):
                for node in self._cluster.nodes:
                    self._look(client, node.name)

    def stop(self):
        self._ended.set()
        self.join()

    def _look(self, client, name):
        url = f"http://{self._cluster.admin(name)}"
        try:
            answer = client.get(f"{url}/readyz")
            words = f"{answer.status_code} {answer.text.strip()}"
            if name.startswith("store-"):
                status = client.get(f"{url}/status").json()
                words = f"{status['role']} of epoch {status['master_epoch']}: {words}"
        except httpx.HTTPError as error:
            words = type(error).__name__
        else:
            if answer.status_code == 200:
                self.unready_since.pop(name, None)
            else:
                self.unready_since.setdefault(name, time.monotonic())
        if self._words.get(name) != words:
            self._words[name] = words
            print(f"    {self.seconds():5.1f} s {name}: {words!r}", flush=True)


class Silences:
    """The times without an acknowledgement: `longest` by client; `served_since`, by proxy, is when all of its were."""

    def __init__(self, runs):
        now = time.monotonic()
        self._last = {one.name: (one.count, now) for run in runs for one in run.publishers}
        self.longest = dict.fromkeys(self._last, 0.0)
        self.served_since = {run.proxies[0].name: now for run in runs}

    def look(self, run):
        now = time.monotonic()
        for one in run.publishers:
            count, last = self._last[one.name]
            self.longest[one.name] = max(self.longest[one.name], now - last)
            if now - last > SERVED_S:
                self.served_since[run.proxies[0].name] = now
            if one.count > count:
                self._last[one.name] = one.count, now


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    if missing() is not None:
        pytest.skip(f"needs a network to cut: {missing()}")
    plan = ClusterPlan(tmp_path_factory.mktemp("cluster"), groups=1)
    names = [node.name for node in nodes(plan)]
    with contextlib.ExitStack() as stack:
        network = Network(names)
        stack.callback(network.close)
        plan = plan._replace(hosts={name: network.addresses[name] for name in names})
        yield stack.enter_context(started(plan, prepare, under=network.under)), network


async def prepare(plan):
    await all_groups(plan)
    async with controller_of(plan) as controller:
        await controller.do(CreateTopic(name="kill", queues=4))


@pytest.mark.parametrize("name", CHOSEN)
async def test_who_does_not_need_the_link_goes_on_and_afterwards_everybody_does(setting, name):
    cluster, network = setting
    runs = [FaultRun(cluster, 1, label=f"{CHOSEN.index(name)}-{which}") for which in ("one", "other")]
    for run, proxy in zip(runs, list(runs[0].proxies), strict=True):
        run.proxies[:] = [proxy]
        run.start_clients(1)
    watch = Watch(cluster)
    try:
        for run in runs:
            assert not await run.all_going(), "before the cut"
        some, others = await asyncio.to_thread(parties, cluster, name)
        print(f"\n{name}: {some} to {others}", flush=True)
        watch.start()
        await asyncio.to_thread(network.cut, some, others, back=False)
        cut = await gone_on(runs, watch, CUT_S)
        assert not await runs[1].all_going(), "whose proxy has its links, or another master"
        await asyncio.to_thread(network.heal)
        print(f"    {watch.seconds():5.1f} s whole", flush=True)
        after = await gone_on(runs, watch, AFTER_S)
        for run in runs:
            assert not await run.all_going(), "they stand still although the link is whole"
            assert await run.keep_going(until=run.whole), run.words_of_the_unready()
    finally:
        network.heal()
        if watch.is_alive():
            await asyncio.to_thread(watch.stop)
        for run in runs:
            await run.stop_clients()
    for run in runs:
        for one in run.publishers:
            silent = f"silent for {cut.longest[one.name]:4.1f} s, then {after.longest[one.name]:4.1f} s"
            print(f"  {one.name:14} {silent} {dict(one.errors)} {one.refused[:1]}", flush=True)
        await asyncio.to_thread(run.check)


def parties(cluster, name):
    """Returns the processes whose packets are dropped, and for whom."""
    names = [node.name for node in cluster.nodes]
    master, _ = only_master(cluster)
    proxies = [one for one in names if one.startswith("proxy-")]
    those = {
        "master": [master],
        "replica": [one for one in names if one.startswith("store-") and one != master][:1],
        "controllers": [one for one in names if one.startswith("controller-")],
        "proxies": proxies,
        "one": proxies[:1],
    }
    some, others = CUTS[name]
    return those[some], those[others]


async def gone_on(runs, watch, seconds):
    """Keeps all clients at work for a time; returns their silences. Fails where `/readyz` of a proxy is not true."""
    silences, began = Silences(runs), time.monotonic()
    while (now := time.monotonic()) - began < seconds:
        for run in runs:
            await run.keep_going()
            silences.look(run)
        for proxy, served in silences.served_since.items():
            unready = watch.unready_since.get(proxy, now)
            assert now - max(unready, served) < UNTRUE_S, f"{proxy} says it is not ready, and serves all of its clients"
    return silences
