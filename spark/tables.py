"""The telemetry job's output, read with pyarrow alone: for dashboards, scripts and the live table.

    windows/date=2026-01-31/batch-0000000041.parquet   settled one-minute windows: a row each, written once
    state/0000000042/open.parquet, latest.parquet      open windows and latest values as of a batch
    manifest.json                                      which batch counts, and the counts themselves: the commit
    open.parquet, latest.parquet                       links to the newest state, for other readers

`manifest.json` is replaced by renaming, after everything it speaks of is on disk. What it names is never changed, and
is removed only when it has been superseded several times, so a reader that meets a missing file reads the manifest
again and gets a newer whole. All of one answer is of one batch.

Readers that know no manifest and read `windows/` as it lies there see no row twice, and every settled row; but they may
see a batch a moment before it counts, and miss rows for the moment in which the small files they are in give way to one
file merged of them. Whoever needs better than that reads `Tables.settled_files`. While files are merged, the result is
named so that Spark and others pass over it: `_batch-0000000001-0000000064.merged`.
"""

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark.errors import SparkError
from spark.windows import LATEST, PARTIALS, WINDOWS, presented

__all__ = ["MANIFEST", "MERGED", "Manifest", "Progress", "Tables", "WindowsFile", "state_dir", "windows_files"]

MANIFEST = "manifest.json"
MERGED = ".merged"  # how the name of a merged file ends until its parts are gone
_ATTEMPTS = 20
_MERGING_ATTEMPTS, _MERGING_WAIT_S = 100, 0.02  # while parts are removed, which takes moments
_WINDOWS_FILE = re.compile(r"(?:batch-(\d{10})(?:-(\d{10}))?\.parquet|_batch-(\d{10})-(\d{10})\.merged)")

T = TypeVar("T")


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of the job. Times are ms since 1970, by the clock of who stored or committed."""

    batch: int = -1  # the last one committed; -1: none yet
    records: int = 0  # counted in all
    offsets: dict[int, int] = msgspec.field(default_factory=dict)  # queue -> the next offset to count
    watermark_ms: int = 0  # windows that end at or before it are settled
    stored_at_ms: int = 0  # when the newest record counted was stored
    committed_at_ms: int = 0
    batch_records: int = 0  # in the last batch
    batch_ms: int = 0  # what the last batch took, from its first query to its commit


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The commit: `state/{batch}` and every settled file of a batch up to it count, and nothing else does."""

    job: str  # the same as in the checkpoint
    progress: Progress = Progress()
    counts: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)  # protocol -> quality -> records

    @classmethod
    def load(cls, output: Path) -> "Manifest | None":
        """The manifest of an output directory; None when nothing was committed. Raises `SparkError` for junk."""
        try:
            return _decode_manifest((output / MANIFEST).read_bytes())
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise SparkError(f"{output / MANIFEST} is not a manifest: {error}") from error


_decode_manifest = msgspec.json.Decoder(Manifest).decode


class WindowsFile(msgspec.Struct, frozen=True, order=True):
    """A file of settled windows: what the batches `first` to `last` (inclusive) settled."""

    first: int
    last: int
    path: Path


def state_dir(output: Path, batch: int) -> Path:
    """Returns the directory of the state as of a batch."""
    return output / "state" / f"{batch:010d}"


def windows_files(day: Path, *, up_to: int) -> list[WindowsFile]:
    """The files of one day that count at batch `up_to`, oldest first; those merged into another do not."""
    found = []
    for path in day.iterdir():
        if (named := _WINDOWS_FILE.fullmatch(path.name)) is not None:
            first, last = int(named[1] or named[3]), int(named[2] or named[4] or named[1])
            if last <= up_to:
                found.append(WindowsFile(first, last, path))
    found.sort(key=lambda file: (file.first, -file.last, file.path.suffix == MERGED))
    kept: list[WindowsFile] = []
    for file in found:
        if not kept or file.first > kept[-1].last:
            kept.append(file)
    return kept


class Tables:
    """The output directory of a telemetry job, which may be running. Empty answers until its first commit."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def progress(self) -> Progress:
        """Returns the progress of the job."""
        return self._manifest().progress

    def counts(self) -> dict[str, int]:
        """Records counted, by the protocol they came by: each record of the log once, whatever is in it."""
        return {protocol: sum(by.values()) for protocol, by in sorted(self._manifest().counts.items())}

    def quality(self) -> dict[str, int]:
        """Records counted, by what is to be said of them: `ok`, `bad_json`, `late` and so on (`spark.telemetry`)."""
        found: dict[str, int] = {}
        for by in self._manifest().counts.values():
            for quality, count in by.items():
                found[quality] = found.get(quality, 0) + count
        return dict(sorted(found.items()))

    def latest(self, limit: int | None = None, *, device: str | None = None) -> pa.Table:
        """The newest value of each device and metric (`spark.windows.LATEST`), newest first."""
        table = self._whole(lambda manifest: self._state(manifest, "latest", LATEST))
        if device is not None:
            table = table.filter(pc.equal(table["device"], device))
        ordered = table.sort_by([("time", "descending"), ("device", "ascending"), ("metric", "ascending")])
        return ordered if limit is None else ordered.slice(0, limit)

    def windows(
        self,
        limit: int | None = None,
        *,
        since_ms: int | None = None,
        device: str | None = None,
        metric: str | None = None,
        settled_only: bool = False,
    ) -> pa.Table:
        """One-minute windows (`spark.windows.WINDOWS`), newest first, from the one that holds `since_ms` on.

        Open windows are among them, as far as they have been counted, unless `settled_only`. Without `since_ms` all
        that was ever settled is read.
        """

        def read(manifest: Manifest) -> pa.Table:
            tables = self._settled(manifest, since_ms)
            if not settled_only:
                tables.append(presented(self._state(manifest, "open", PARTIALS)))
            return pa.concat_tables(tables) if tables else WINDOWS.empty_table()

        table = self._whole(read)
        if since_ms is not None:
            table = table.filter(pc.greater_equal(table["start"], _minute(since_ms)))
        for name, wanted in (("device", device), ("metric", metric)):
            if wanted is not None:
                table = table.filter(pc.equal(table[name], wanted))
        ordered = table.sort_by([("start", "descending"), ("device", "ascending"), ("metric", "ascending")])
        return ordered if limit is None else ordered.slice(0, limit)

    def settled_files(self) -> list[Path]:
        """The Parquet files of settled windows that count now: what Spark or another engine should read.

        Raises `SparkError` when files have been half merged and nobody goes on: the job will when it is next started.
        """
        for _ in range(_MERGING_ATTEMPTS):
            files = [file.path for file in self._windows_files(self._manifest(), None)]
            if all(path.suffix != MERGED for path in files):  # whose name engines pass over, even when it is given
                return files
            time.sleep(_MERGING_WAIT_S)
        raise SparkError(f"the files of {self.path} are half merged: start the job that writes them")

    def _manifest(self) -> Manifest:
        return Manifest.load(self.path) or Manifest(job="")

    def _whole(self, read: Callable[[Manifest], T]) -> T:
        """Returns what `read` answers, all of it as of one batch, however often batches are committed meanwhile."""
        for _ in range(_ATTEMPTS):
            try:
                return read(self._manifest())
            except FileNotFoundError:
                continue
        raise SparkError(f"{self.path} changes faster than it can be read")

    def _state(self, manifest: Manifest, name: str, schema: pa.Schema) -> pa.Table:
        if manifest.progress.batch < 0:
            return schema.empty_table()
        return pq.read_table(
            state_dir(self.path, manifest.progress.batch) / f"{name}.parquet", schema=schema, partitioning=None
        )

    def _windows_files(self, manifest: Manifest, since_ms: int | None) -> list[WindowsFile]:
        directory = self.path / "windows"
        if not directory.is_dir():
            return []
        first = "" if since_ms is None else f"date={datetime.fromtimestamp(since_ms // 1000, UTC):%Y-%m-%d}"
        days: Sequence[Path] = sorted(day for day in directory.glob("date=*") if day.name >= first)
        return [file for day in days for file in windows_files(day, up_to=manifest.progress.batch)]

    def _settled(self, manifest: Manifest, since_ms: int | None) -> list[pa.Table]:
        filters = None if since_ms is None else [("start", ">=", _minute(since_ms))]
        return [
            pq.read_table(file.path, schema=WINDOWS, filters=filters, partitioning=None)
            for file in self._windows_files(manifest, since_ms)
        ]


def _minute(time_ms: int) -> pa.Scalar:
    """The start of the window that holds a time."""
    return pa.scalar(time_ms // 60_000 * 60_000_000, pa.timestamp("us", "UTC"))
