"""Rows of findings as CloudEvents 1.0, in JSON.

    analytics/anomaly/{device}    spike, level_shift, stuck, rate_spike
    analytics/liveness/{device}   silent, back, flapping

The id follows from device, metric, kind and time, so a pass that finds the same again sends the same id. Characters
that a level of an address may not hold are percent-escaped in the device's name.
"""

import hashlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from spark.telemetry.events import ANOMALY, LIVENESS
from spark.telemetry.liveness import KINDS

SOURCE = "/headgate/telemetry"
_ROWS_AT_ONCE = 1_024
_ESCAPED = frozenset('%/+#$"') | {chr(code) for code in (*range(0x20), *range(0x7F, 0xA0))}
_UNNAMED = "%"  # the level of a device without a name, which no name is escaped to
_DEVICE_BYTES_MAX = 1_024  # of a level of an address


class FindingEvent(NamedTuple):
    """One finding, to be published."""

    id: str
    device: str
    body: bytes  # application/cloudevents+json


def events_of_rows(rows: pa.Table) -> Iterator[FindingEvent]:
    """Yields an event for each row of `EVENTS`, in the order of the rows."""
    for batch in rows.to_batches(_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            yield _event(row)


def level(device: str) -> str:
    """Returns a device's name as one level of an address."""
    text = "".join("".join(f"%{b:02X}" for b in c.encode()) if c in _ESCAPED else c for c in device) or _UNNAMED
    if len(text.encode("utf-8", "surrogatepass")) > _DEVICE_BYTES_MAX:
        text = hashlib.sha256(device.encode("utf-8", "surrogatepass")).hexdigest()
    return text


def _event(row: Mapping[str, Any]) -> FindingEvent:
    device, kind, time = row["device"] or "", row["kind"], row["time"]
    liveness = kind in KINDS
    event = {
        "specversion": "1.0",
        "id": _identity(device, row["metric"] or "", kind, time),
        "source": SOURCE,
        "type": f"headgate.{'liveness' if liveness else 'anomaly'}.v1",
        "subject": f"{LIVENESS if liveness else ANOMALY}{level(device)}",
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": {name: _plain(value) for name, value in row.items() if value is not None},
    }
    return FindingEvent(event["id"], device, msgspec.json.encode(event))


def _identity(device: str, metric: str, kind: str, time: datetime) -> str:
    text = "\0".join((device, metric, kind, time.isoformat(timespec="microseconds")))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value
