"""Labels: which device had which fault from when to when, as a file of JSON lines or CSV.

A line has `device`, `metric` (empty: of the whole device), `kind`, `start` and `end` (RFC 3339), `finds`, the kinds of
findings that tell it, and `quality`, a column of the table `quality` that tells it. Lines of the kind `run` say from
when to when a device is heard: findings outside of it are not judged. In CSV `finds` has spaces between the kinds.
"""

import csv
import io
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from spark.decode.fields import time_us_of
from spark.errors import BadOption, SparkError

RUN: Final = "run"
COLUMNS: Final = ("device", "metric", "kind", "start", "end", "finds", "quality")


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of one device, or the time in which it is heard. Times are ms since 1970."""

    device: str
    kind: str
    start_ms: int
    end_ms: int
    metric: str = ""
    finds: tuple[str, ...] = ()
    quality: str = ""


def write_labels(path: Path, labels: Iterable[Label]) -> None:
    """Replaces a file of labels: CSV where its name ends so, else JSON lines. Raises `SparkError`."""
    rows = [_row(one) for one in labels]
    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"finds": " ".join(row["finds"])} for row in rows)
        data = text.getvalue().encode()
    else:
        data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise SparkError(f"the labels {path} cannot be written: {error.strerror or error}") from error


def read_labels(path: Path) -> list[Label]:
    """Returns the labels of a file. Raises `SparkError`."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SparkError(f"the labels {path} cannot be read: {why}") from error
    rows: Iterable[Any]
    try:
        if path.suffix == ".csv":
            rows = list(csv.DictReader(io.StringIO(text)))
        else:
            rows = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
        return [_label(row, n) for n, row in enumerate(rows, 1)]
    except (csv.Error, msgspec.DecodeError) as error:
        raise SparkError(f"the labels {path} cannot be read: {error}") from error
    except BadOption as error:
        raise SparkError(f"the labels {path} cannot be read: {error.why}") from error


def until(labels: Iterable[Label], end_ms: int) -> list[Label]:
    """Returns the labels of a run that ended before it was over."""
    return [msgspec.structs.replace(one, end_ms=min(one.end_ms, end_ms)) for one in labels if one.start_ms < end_ms]


def instant(time_ms: int) -> str:
    """Returns a time as RFC 3339 has it, in ms, UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"


def _row(one: Label) -> dict[str, Any]:
    times = {"start": instant(one.start_ms), "end": instant(one.end_ms)}
    return {name: times[name] if name in times else getattr(one, name) for name in COLUMNS}


def _label(row: Any, number: int) -> Label:
    if not isinstance(row, dict):
        raise BadOption("labels", f"line {number} is no object")
    texts = {name: row.get(name) or "" for name in ("device", "metric", "kind", "quality")}
    if not texts["device"] or not texts["kind"] or not all(isinstance(text, str) for text in texts.values()):
        raise BadOption("labels", f"line {number} has no device, or no kind")
    times = [time_us_of(row.get(name)) for name in ("start", "end")]
    if times[0] is None or times[1] is None:
        raise BadOption("labels", f"line {number} has no start or end that is a time, as 2026-11-23T12:00:00Z")
    finds = row.get("finds") or ()
    kinds = tuple(finds.split()) if isinstance(finds, str) else tuple(str(kind) for kind in finds)
    return Label(start_ms=times[0] // 1_000, end_ms=times[1] // 1_000, finds=kinds, **texts)
