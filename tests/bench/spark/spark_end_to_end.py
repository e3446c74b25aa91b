"""Measures the time from a PUBLISH to the telemetry table, to the dashboard, and to a finding. Prints JSON.

python -m tests.bench end-to-end [--rate 10000] [--seconds 60] [--devices 1000] [--probes 40] [--trigger 2]
    [--refresh 5] [--cores 2] [--dir DIR]

A gateway, the telemetry job and the dashboard run as processes of their own, as users start them. One MQTT connection
publishes at QoS 1, `rate` messages a second in bursts of 10 ms, each with the time at which it is sent as its body's
only number. `table_ms` is from there until the manifest of the tables names a pass with the message in it, for every
message: which one stands at which place is read from the log afterwards. `dashboard_ms` is until a response of the
dashboard's page of the message's device shows its value or a newer one, for one device; the page is asked for every
`refresh` seconds, as a browser does. `finding_ms` is from the PUBLISH of a strange reading, of one of `probes` more
devices, to the job's finding at an MQTT subscriber; `spikes` are how many were published, and heard of. `waiting` is
how many messages were sent and in no table yet, after a third of the time and in the end: where the second is no
greater than what two triggers and two batches bring, the rate is `kept`.
The time begins when the job has counted a first message; its first third is left
out, in which Spark warms up. With `--probes 0` the job publishes no findings.
"""

import argparse
import json
import os
import re
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from spark.dashboard.pages import device
from spark.tables.reader import Tables
from store.api.message import decode
from store.remoting.reader import RemoteReader
from tests.bench.load.mqtt.mqtt_wire import connect, packet, text
from tests.bench.options import above_zero, at_least, made_directory, scratch
from tests.bench.spark.finding_probe import FindingProbe
from tests.bench.spark.spark_telemetry import peak_mib
from tests.support.process.gateways import GatewayProcess

BURST_S = 0.01
TOPIC, PROBE = "telemetry", 7  # the number of the device whose page is looked at
HEARD_S = 60.0  # for the last findings to be heard
SETTLE_S = 900.0  # for Spark to start, and to count the rest, however busy the machine is
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")


class Publisher(threading.Thread):
    """Publishes at a rate; the PUBACKs are counted and not waited for."""

    def __init__(self, port: int, options: argparse.Namespace) -> None:
        super().__init__(daemon=True)
        self._socket: socket.socket = connect("127.0.0.1", port, "")  # so that the address says the device
        self._options, self.sent, self.acked, self.late = options, 0, 0, 0
        self.began_s = 0.0
        self._acks = threading.Thread(target=self._count, daemon=True)

    def run(self) -> None:
        self._acks.start()
        options, began_s = self._options, time.monotonic()
        self.began_s = time.time()
        while (now_s := time.monotonic()) < began_s + options.seconds:
            due = int((now_s - began_s) * options.rate) - self.sent
            self.late += due > 2 * options.rate * BURST_S
            stamp = time.time()
            self._socket.sendall(b"".join(self._packet(n, stamp) for n in range(self.sent, self.sent + due)))
            self.sent += due
            time.sleep(BURST_S)

    def _packet(self, n: int, stamp: float) -> bytes:
        return message(n % self._options.devices, n % 65_535 + 1, stamp)

    def _count(self) -> None:
        left = b""
        self._socket.settimeout(None)  # all may be acknowledged long before all is counted
        while data := self._socket.recv(1 << 16):
            whole = len(left := left + data) // 4
            self.acked += whole
            left = left[4 * whole :]


def message(device: int, packet_id: int, stamp: float) -> bytes:
    """Returns the PUBLISH of a message."""
    name = b"%s/site1/d%d/a" % (TOPIC.encode(), device)
    return packet(0x32, text(name) + struct.pack("!H", packet_id) + b'{"sent":%.6f}' % stamp)


def publish_first(port: int) -> None:
    """Publishes one message of the device whose page is looked at."""
    with connect("127.0.0.1", port, "") as one:
        one.sendall(message(PROBE, 1, time.time()))
        assert one.recv(64), "the first message is not acknowledged"


class TableWatch(threading.Thread):
    """Notes from when on the tables have each queue's offsets."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(daemon=True)
        self._tables, self.stop = tables, threading.Event()
        self.seen: dict[int, list[tuple[int, float]]] = {}
        self.batch_ms: list[int] = []

    def run(self) -> None:
        batch = -1
        while not self.stop.wait(0.02):
            progress, now_s = self._tables.progress(), time.time()
            if progress.batch == batch:
                continue
            batch = progress.batch
            self.batch_ms.append(progress.batch_ms)
            for queue, offset in progress.offsets.items():
                self.seen.setdefault(queue, []).append((offset, now_s))


# The outputs of the callback by which a device's page is shown anew at each tick.
SHOWN = (
    *(("device-body", "children"), ("device-chart", "style"), ("device-chart-head", "children")),
    *((device.CHART, "figure"), (device.CHART, "style"), ("device-more", "children")),
)


class DashboardWatch(threading.Thread):
    """Asks for a device's page as a browser does, and notes the newest value that it shows."""

    def __init__(self, url: str, refresh_s: float) -> None:
        super().__init__(daemon=True)
        self._url, self._refresh_s, self.stop = url, refresh_s, threading.Event()
        self.seen: list[tuple[int, float]] = []  # the offset behind the newest message that is shown, and since when
        self.page_ms: list[float] = []

    def run(self) -> None:
        inputs = [
            {"id": "tick", "property": "n_intervals", "value": 1},
            {"id": "url", "property": "search", "value": ""},
        ]
        state = [{"id": "url", "property": "pathname", "value": f"/device/d{PROBE}"}]
        outputs = [{"id": id_, "property": name} for id_, name in SHOWN]
        output = f"..{'...'.join(f'{id_}.{name}' for id_, name in SHOWN)}.."
        body = {"output": output, "outputs": outputs, "inputs": inputs, "state": state}
        body["changedPropIds"] = ["tick.n_intervals"]
        asked = urllib.request.Request(
            f"{self._url}_dash-update-component", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        while not self.stop.wait(self._refresh_s):
            began_s = time.time()
            with urllib.request.urlopen(asked, timeout=60) as answer:
                page = answer.read().decode()
            self.page_ms.append((time.time() - began_s) * 1_000)
            if (found := newest_on(page)) is not None:
                self.seen.append((found + 1, time.time()))


def newest_on(page: str) -> int | None:
    """Returns the greatest offset that a page of a device names, in its column of places; None: the page is empty."""
    found = [int(offset) for offset in re.findall(r'"\d+, (\d+)"', page)]
    return max(found, default=None)


def spread(values: Any) -> dict[str, float]:
    """Returns median, 99th percentile and maximum, in ms."""
    if not len(values):
        return {}
    cuts = np.percentile(np.asarray(values), (50, 99, 100)) * 1_000
    return dict(zip(("p50", "p99", "max"), (round(float(one)) for one in cuts), strict=True))


def seen_at(places: Any, seen: list[tuple[int, float]]) -> Any:
    """Returns from when on each of some places was seen; `seen` has the next place and the time, in order."""
    upto, when = np.array([one for one, _ in seen]), np.array([at for _, at in seen])
    return when[np.searchsorted(upto, places, side="right")]


class Sent(NamedTuple):
    """The times at which the messages of a queue were sent, in their order, and which of them are the probe's."""

    times: Any
    probe: Any


def sent_times(target: str) -> dict[int, Sent]:
    """Reads all messages back; returns those of each queue."""
    found = {}
    with RemoteReader(target) as reader:
        for queue in reader.topics()[TOPIC]:
            messages = [decode(frame.record(row)) for frame, rows, _ in reader.fetch(queue, 0) for row in list(rows)]
            times = np.array([json.loads(message.body).get("sent", 0.0) for message in messages])  # a probe's: left out
            found[queue] = Sent(
                times, np.array([message.address == f"{TOPIC}/site1/d{PROBE}/a" for message in messages], bool)
            )
    return found


def start(log: Path, *words: str) -> subprocess.Popen:
    with log.open("wb") as out:
        command = [sys.executable, "-m", "gateway.cli", *words]
        return subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)


def dashboard_url(process: subprocess.Popen, log: Path) -> str:
    until = time.monotonic() + SETTLE_S
    while (found := _ADDRESS.search(log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    return found[0]


def await_counted(tables: Tables, count: int, job: subprocess.Popen, log: Path) -> None:
    """Waits until so many messages are in the tables."""
    until = time.monotonic() + SETTLE_S
    while tables.progress().records < count:
        assert job.poll() is None, log.read_text()[-4_000:]
        assert time.monotonic() < until, log.read_text()[-4_000:]
        time.sleep(0.1)


def waits(publisher: Publisher, probe: FindingProbe | None, tables: Tables) -> int:
    """Returns how many messages were sent and are not counted yet."""
    return sent_by(publisher, probe) - tables.progress().records


def sent_by(publisher: Publisher, probe: FindingProbe | None) -> int:
    """Returns how many messages were sent, the first one among them."""
    return 1 + publisher.sent + (probe.published if probe is not None else 0)


def room(options: argparse.Namespace, batch_ms: float) -> float:
    """Returns how many messages may wait where the job keeps up: those of two triggers and two batches."""
    return options.rate * 2 * (options.trigger + batch_ms / 1_000)


def measure(where: Path, options: argparse.Namespace) -> dict[str, Any]:
    gateway, children = GatewayProcess(where / "data").start(), []
    target, output = f"127.0.0.1:{gateway.port('rpc')}", str(where / "tables")
    try:
        place = ("--target", target, "--output", output, "--topic", TOPIC, "--trigger", str(options.trigger))
        findings = ("--cores", str(options.cores), "--findings", gateway.url if options.probes else "none")
        job = start(where / "job.log", "spark", "telemetry", *place, *findings)
        children.append(job)
        shown = ("--tables", output, "--port", "0", "--admin", f"http://127.0.0.1:{gateway.port('admin')}")
        children.append(start(where / "dashboard.log", "dashboard", *shown, "--gateway", gateway.url))
        url = dashboard_url(children[-1], where / "dashboard.log")
        tables = Tables(output)
        publish_first(gateway.port("mqtt"))
        await_counted(tables, 1, job, where / "job.log")
        publisher = Publisher(gateway.port("mqtt"), options)
        probe = None
        if options.probes:
            probe = FindingProbe(gateway.port("mqtt"), TOPIC, options.probes, options.seconds)
        watch, page = TableWatch(tables), DashboardWatch(url, options.refresh)
        for thread in (watch, page, publisher, *([probe] if probe is not None else [])):
            thread.start()
        publisher.join(options.seconds / 3)
        waiting = [waits(publisher, probe, tables)]
        publisher.join()
        waiting.append(waits(publisher, probe, tables))
        if probe is not None:
            probe.join()
        await_counted(tables, sent_by(publisher, probe), job, where / "job.log")
        time.sleep(2 * options.refresh)
        watch.stop.set()
        page.stop.set()
        watch.join()
        page.join()
        found = figures(sent_times(target), watch, page, publisher, options)
        if probe is not None:
            probe.wait(HEARD_S)
            probe.close()
            from_s = publisher.began_s + options.seconds / 3
            found |= {"finding_ms": spread(probe.times_s(from_s)), "spikes": [len(probe.sent), len(probe.heard)]}
        found |= {"waiting": waiting, "kept": waiting[1] <= room(options, found["batch_ms"])}
        return found | {"driver_mib": round(peak_mib(job.pid))}
    finally:
        for child in reversed(children):
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        gateway.close()


def figures(
    sent: dict[int, Sent], watch: TableWatch, page: DashboardWatch, publisher: Publisher, options: argparse.Namespace
) -> dict[str, Any]:
    queues = {queue: one for queue, one in sent.items() if len(one.times)}
    from_s = publisher.began_s + options.seconds / 3
    table, shown = [], []
    for queue, (times, probe) in queues.items():
        table.append((seen_at(np.arange(len(times)), watch.seen[queue]) - times)[times >= from_s])
        places = np.flatnonzero(probe & (times >= from_s))
        if len(places) and page.seen:  # those of a device are all in one queue
            shown.append(seen_at(places, page.seen) - times[places])
    return {
        "messages": publisher.sent,
        "acknowledged": publisher.acked,
        "bursts_late": publisher.late,
        "table_ms": spread(np.concatenate(table)),
        "dashboard_ms": spread(np.concatenate(shown)) if shown else {},  # the device has sent nothing
        "page_ms": round(statistics.median(page.page_ms)) if page.page_ms else None,
        "batch_ms": round(statistics.median(watch.batch_ms)),
        "batches": len(watch.batch_ms),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=at_least(1), default=10_000)
    parser.add_argument("--seconds", type=above_zero, default=60.0)
    parser.add_argument("--devices", type=at_least(PROBE + 1), default=1_000)
    parser.add_argument("--probes", type=at_least(0), default=40)
    parser.add_argument("--trigger", type=above_zero, default=2.0)
    parser.add_argument("--refresh", type=above_zero, default=5.0)
    parser.add_argument("--cores", type=at_least(1), default=2)
    parser.add_argument("--dir", type=made_directory, default=None)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with scratch(options.dir) as where:
        found = measure(where, options)
    shape = {
        name: getattr(options, name) for name in ("rate", "seconds", "devices", "probes", "trigger", "refresh", "cores")
    }
    print(json.dumps({"shape": shape, "load": [load, os.getloadavg()[0]], **found}))


if __name__ == "__main__":
    main()
