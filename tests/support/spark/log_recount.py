"""Telemetry at a real gateway, and a plain recount of its log: what the tables have to hold, counted by the book.

Bodies are JSON objects of numbers that have exact sums, times are the events' own, up to twenty minutes before now.
"""

import itertools
import random
import time
import uuid
from collections import Counter, defaultdict, deque
from datetime import UTC, datetime

import msgspec
import pyarrow as pa

from spark.findings.events import events_of_rows
from spark.publishing.client import GatewayClient
from spark.tables.reader import Tables
from spark.tables.schemas import SPECS
from store.api.message import decode
from store.remoting.reader import RemoteReader
from tests.support.spark.job_kit import MINUTE_MS, Record, duplicates, naive, shown, total

TOPIC, FINDINGS_TOPIC = "telemetry", "analytics"
REQUEST_EVENTS = 50
LATE_MS, LATE_SHARE = 20 * MINUTE_MS, 0.2
SPIKE_SHARE, SPIKE = 0.01, 900.0
COPY_SHARE, COPIED_COUNT = 0.05, 3  # of events that repeat one of the last few of their device, spikes among them
BATCH_TYPE = "application/cloudevents-batch+json"


class Telemetry:
    """Events of a few devices, published at one of several gateways, each once whatever is killed meanwhile.

    Some say what another said before: the client that published it has had no answer, and does so again.
    """

    def __init__(self, urls: str, seed: int, *, devices: int = 5, retry_s: float = 300.0) -> None:
        self._client = GatewayClient(urls, retry_s=retry_s)
        self._chance, self._devices = random.Random(seed), devices
        self._run, self._numbers = uuid.uuid4().hex, itertools.count()
        self._recent: dict[str, deque[dict]] = defaultdict(lambda: deque(maxlen=COPIED_COUNT))
        self.published = 0

    def feed(self, count: int) -> None:
        """Publishes about so many events: whole requests."""
        for _ in range(0, count, REQUEST_EVENTS):
            now_ms = round(time.time() * 1000)
            events = [self._event(now_ms) for _ in range(REQUEST_EVENTS)]
            key = f"{self._run}-{next(self._numbers)}"
            headers = {"content-type": BATCH_TYPE, "idempotency-key": key}
            self._client.ask("POST", "/events", content=msgspec.json.encode(events), headers=headers)
            self.published += REQUEST_EVENTS

    def close(self) -> None:
        """Ends the connections."""
        self._client.close()

    def _event(self, now_ms: int) -> dict:
        chance = self._chance
        subject = f"{TOPIC}/site1/d{chance.randrange(self._devices)}"  # the third level is the device
        id_ = f"{self._run}-{next(self._numbers)}"
        if self._recent[subject] and chance.random() < COPY_SHARE:
            return chance.choice(self._recent[subject]) | {"id": id_}
        event = self._new(subject, now_ms) | {"id": id_}
        self._recent[subject].append(event)
        return event

    def _new(self, subject: str, now_ms: int) -> dict:
        chance = self._chance
        at_ms = now_ms - chance.randrange(LATE_MS if chance.random() < LATE_SHARE else 2_000)
        value = SPIKE if chance.random() < SPIKE_SHARE else round(chance.gauss(20, 1) * 64) / 64
        return {
            "specversion": "1.0",
            "source": "/test",
            "type": "reading",
            "subject": subject,
            "time": datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "datacontenttype": "application/json",
            "data": {"a": value, "b": float(chance.randrange(1_000))},
        }


def messages(target: str, topic: str):
    """Yields every message of a topic with its queue, offset and time of storage, read without Spark."""
    with RemoteReader(target, retry_s=120) as reader:
        for queue in reader.topics().get(topic, ()):
            for frame, rows, first in reader.fetch(queue, 0):
                for n, row in enumerate(list(rows)):
                    yield queue, first + n, frame.header.stored_at_ms, decode(frame.record(row))


def logged(target: str) -> list[Record]:
    """Returns the log's telemetry as records."""
    return [
        Record(
            message.address.rpartition("/")[2],
            message.time_ms,
            offset,
            msgspec.json.decode(message.body),
            stored_ms,
            queue,
            message.protocol,
            address=message.address,
        )
        for queue, offset, stored_ms, message in messages(target, TOPIC)
    ]


def newest(records: list[Record]) -> dict:
    """Returns the newest value of each device and metric: by its time, then by its place."""
    found: dict[tuple[str, str], tuple] = {}
    for record in records:
        for metric, value in record.values.items():
            one = (record.time_ms, record.offset, record.queue, value)
            found[record.device, metric] = max(one, found.get((record.device, metric), one))
    return {key: one[-1] for key, one in found.items()}


def assert_recounted(tables: Tables, target: str) -> None:
    """Compares every table with the log, and the findings that were published with those in their table."""
    records = logged(target)
    count = len(records)
    assert tables.progress().records == sum(tables.counts().values()) == count
    assert shown(tables.windows()) == naive(records)
    assert shown(tables.windows(table="windows_15m")) == naive(records, 15 * MINUTE_MS)
    latest = {(row["device"], row["metric"]): row["value"] for row in tables.table("latest").to_pylist()}
    assert latest == newest(records)
    by_device = Counter(record.device for record in records)
    for name in ("devices", "sessions", "quality"):
        assert sums(tables.table(name)) == by_device, name
    repeated = {row["device"]: row["duplicates"] for row in tables.table("quality").to_pylist()}
    assert repeated == duplicates(records)
    assert sum(repeated.values()) > 0, "nothing was published twice"
    addresses = {record.device: record.address for record in records}
    for name in ("latest", "devices", "sessions", "quality"):
        assert {row["device"]: row["address"] for row in tables.table(name).to_pylist()} == addresses, name
    assert total(tables.table("traffic"), "records") == count
    assert tables.table("quarantine").num_rows == 0
    samples = tables.table("samples")
    assert Counter(zip(*(samples[name].to_pylist() for name in ("queue", "offset", "metric")), strict=True)) == {
        (record.queue, record.offset, metric): 1 for record in records for metric in record.values
    }
    rows = tables.table("anomalies").select(SPECS["anomalies"].columns.names)
    twice = doubled(rows)
    assert not twice, f"findings are in the table more than once:\n{twice}"
    ids = Counter(event.id for event in events_of_rows(rows))
    heard = Counter(message.id for _, _, _, message in messages(target, FINDINGS_TOPIC))
    assert heard == ids, "what was published is not what is in the table"
    assert ids


def doubled(rows: pa.Table) -> str:
    """Returns the findings whose id stands more than once, a line each, those of one id together; empty for none."""
    by_id: dict[str, list[dict]] = defaultdict(list)
    for row, event in zip(rows.to_pylist(), events_of_rows(rows), strict=True):
        by_id[event.id].append(row)
    repeated = {id_: group for id_, group in by_id.items() if len(group) > 1}
    return "\n".join(
        f"{id_} {row['time'].isoformat()} {row['device']} {row['metric']} {row['kind']}: {row['sentence']}"
        for id_, group in repeated.items()
        for row in group
    )


def sums(rows: pa.Table) -> Counter:
    """Returns the column `records` added up by device."""
    found: Counter[str] = Counter()
    for device, count in zip(rows["device"].to_pylist(), rows["records"].to_pylist(), strict=True):
        found[device] += count
    return found
