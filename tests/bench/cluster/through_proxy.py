"""Measures the store group behind a proxy as clients see it: throughput, acknowledgements, a master's death."""

import asyncio
import random
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gateway.process.local_cluster import ClusterProcess
from tests.bench.cluster.rig import BenchCluster, load_on, running
from tests.bench.cluster.stores import append_times
from tests.bench.load.mqtt.mqtt_latency import MqttLatency
from tests.bench.load.mqtt.mqtt_publish import MqttPublish
from tests.bench.load.mqtt.mqtt_wire import connect, publish, receive, topic
from tests.bench.procfs import cpu_s
from tests.bench.store.store_append import build, throughput
from tests.bench.store.studies import Rows

WARM_UP = 20_000  # messages
CONNECTIONS = 4
SHALLOW, DEEP, DEEPEST = 200, 1_000, 4_000  # messages of a connection under way
RECORDS = 100  # in a frame
SILENCE_S = 60.0
BETWEEN_S = 0.005  # messages of the one that sees a failover
SETTLE_S = 1.0


async def measure_case(directory: Path, *, what: str, **case: Any) -> Rows:
    """Measures one of the cases below."""
    return await {"cost": _cost, "failover": _failover, "proxies": _proxies}[what](directory, **case)


# ---- what replicas and distance cost


async def _cost(directory: Path, *, replicas: int, seconds: float, delay_ms: float | None = None) -> Rows:
    """Measures MQTT through the proxy, then frames straight to the store."""
    async with running(directory, replicas=replicas, delay_ms=delay_ms) as rig:
        found = await _mqtt(rig, rig.proxies, seconds)
        store = rig.store()
        await store.connected()
        frames = [build(RECORDS, 150, 8, 1_000, random.Random(1)) for _ in range(64)]
        await throughput(store, frames, min(seconds, 0.5))
        master = rig.master
        before = _cpu(rig, master)
        flat_out = await throughput(store, frames, seconds)
        cpu, count = _cpu(rig, master), flat_out["frames_per_s"] * seconds
        found |= {"frames_per_s": flat_out["frames_per_s"], "frames_mb_per_s": flat_out["mb_per_s"]}
        found |= {f"frames_{role}_us": (cpu[role] - before[role]) / count * 1e6 for role in ("master", "replicas")}
        taken = await append_times(store, frames[0], seconds)
        found["append_p50_ms"] = taken[len(taken) // 2] * 1e3
        await store.close()
    far = "" if delay_ms is None else f", {delay_ms:g} ms each way between nodes"
    return [(f"{replicas} replica{'s' if replicas > 1 else ''}, {min(2, replicas)} in sync{far}", found)]


async def _mqtt(rig: BenchCluster, proxies: Sequence[ClusterProcess], seconds: float) -> dict[str, float]:
    """Returns messages a second at QoS 1 over all proxies, then the times of a paced publisher's acknowledgements."""
    found: dict[str, float] = {}
    each = CONNECTIONS // len(proxies)
    depths = {"mqtt_shallow_per_s": SHALLOW, "mqtt_deepest_per_s": DEEPEST, "mqtt_per_s": DEEP}
    for key, window in depths.items():
        load = MqttPublish(count=WARM_UP, conns=each, window=window)
        (first, *_) = await load_on(proxies, [load] * len(proxies))
        load = msgspec.structs.replace(load, count=max(WARM_UP, int(first.value * seconds)))
        master = rig.master
        before, began = _cpu(rig, master), time.perf_counter()
        taken = await load_on(proxies, [load] * len(proxies))
        cpu, wall = _cpu(rig, master), time.perf_counter() - began
        done = sum(one.done for one in taken)
        found |= {
            key: sum(one.value for one in taken),
            "busy_cores": sum(cpu[role] - before[role] for role in cpu) / wall,
        }
        found |= {f"{role}_cpu_us": (cpu[role] - before[role]) / done * 1e6 for role in cpu}
    (paced,) = await load_on(proxies[:1], [MqttLatency(rate=200.0, duration_s=seconds)])
    found |= {"puback_ms": paced.value} | {f"puback_{name}": value for name, value in paced.also.items()}
    return found


def _cpu(rig: BenchCluster, master: str) -> dict[str, float]:
    found = {"proxy": 0.0, "master": 0.0, "replicas": 0.0}
    for node in [*rig.proxies, *rig.stores]:
        role = "proxy" if node.role == "proxy" else "master" if node.name == master else "replicas"
        found[role] += cpu_s(rig.cluster.pid(node.name))
    return found


async def _proxies(directory: Path, *, proxies: int, seconds: float) -> Rows:
    """Measures the same four connections over this many proxies."""
    async with running(directory, proxies=proxies) as rig:
        found = await _mqtt(rig, rig.proxies, seconds)
    return [(f"{proxies} prox{'ies' if proxies > 1 else 'y'}", found)]


# ---- a master's death


class Watcher(threading.Thread):
    """Publishes at QoS 1, one message after the other, and notes when each was sent and acknowledged."""

    def __init__(self, proxy: ClusterProcess) -> None:
        super().__init__(daemon=True)
        self.proxy = proxy
        self.stopping = False
        self.sent: list[float] = []
        self.acknowledged: list[float] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._publish(connect(self.proxy.host, self.proxy.port, "watcher"))
        except Exception as error:  # noqa: BLE001 - whoever waits for the next acknowledgement is told
            self.error = error

    def _publish(self, connection: socket.socket) -> None:
        connection.settimeout(SILENCE_S)
        while not self.stopping:
            self.sent.append(time.perf_counter())
            connection.sendall(publish(topic(1), b"x" * 100, qos=1, identifier=len(self.sent) % 60_000 + 1))
            while len(receive(connection)) % 4:
                continue
            self.acknowledged.append(time.perf_counter())
            time.sleep(BETWEEN_S)
        connection.close()


async def _failover(directory: Path, *, times: int) -> Rows:
    """Kills the master with kill -9 again and again, with default settings, and measures each failover."""
    rows: list[tuple[str, dict[str, float]]] = []
    async with running(directory, controllers=3) as rig:
        watcher = Watcher(rig.proxies[0])
        watcher.start()
        for _ in range(times):
            since = len(watcher.acknowledged)
            await asyncio.sleep(SETTLE_S)
            rows.append(("kill -9 of the master", await _one_failover(rig, watcher, since)))
        watcher.stopping = True
        await asyncio.to_thread(watcher.join, SILENCE_S)
    return rows


async def _one_failover(rig: BenchCluster, watcher: Watcher, since: int) -> dict[str, float]:
    """Returns the times from the kill to the acknowledgement of the first message sent behind it, and to the
    election; and the longest wait before the kill, of the messages from `since` on.
    """
    master, epoch = rig.master, rig.group.master_epoch
    longest = max(b - a for a, b in zip(watcher.sent[since:], watcher.acknowledged[since:], strict=False))
    killed = time.perf_counter()
    rig.cluster.stop(master, kill=True)
    await rig.until(lambda: rig.group.master_epoch > epoch and rig.group.master is not None)
    elected = time.perf_counter() - killed

    def acknowledged() -> bool:
        assert watcher.error is None, watcher.error
        return len(watcher.acknowledged) > first

    first = len(watcher.sent)
    while first and watcher.sent[first - 1] > killed:
        first -= 1  # the first that was sent behind the kill
    await rig.until(acknowledged)
    found = {"s": watcher.acknowledged[first] - killed, "elected_s": elected, "before_ms": longest * 1e3}
    rig.cluster.start(master)
    await rig.whole()
    return found
