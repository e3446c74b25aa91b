"""The telemetry tables, read with deltalake and pyarrow alone: for dashboards, scripts and the live table.

Every engine that knows Delta Lake reads the tables as they are, and sees each commit whole. `Tables` besides reads
them as of one pass: the manifest names the version of each table that belongs to it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from spark.errors import SparkError
from spark.tables.files import Location, reason
from spark.tables.manifest import JobProgress, Manifest
from spark.tables.schemas import DAY, SPECS, WINDOW_TABLES
from spark.telemetry.windows import INSTANT


class Tables:
    """The output of a telemetry job, which may be running. Empty answers until its first commit."""

    def __init__(self, where: str | Path, options: Mapping[str, str] | None = None) -> None:
        self.place = Location.of(where, options)

    def progress(self) -> JobProgress:
        """Returns the progress of the job."""
        return self._manifest().progress

    def counts(self) -> dict[str, int]:
        """Counts records by the protocol they came by: each record of the log once, whatever is in it."""
        return {protocol: sum(by.values()) for protocol, by in sorted(self._manifest().counts.items())}

    def quality(self) -> dict[str, int]:
        """Counts records by quality: `ok`, `bad_json`, `late` and so on."""
        found: dict[str, int] = {}
        for by in self._manifest().counts.values():
            for quality, count in by.items():
                found[quality] = found.get(quality, 0) + count
        return dict(sorted(found.items()))

    def latest(self, limit: int | None = None, *, device: str | None = None) -> pa.Table:
        """Returns the newest value of each device and metric, newest first."""
        table = self.table("latest", _equal(device=device))
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
        table: str = "windows_1m",
    ) -> pa.Table:
        """Returns windows, newest first, from the one that holds `since_ms` on.

        Open windows are among them, as far as they have been counted, unless `settled_only`.
        """
        chosen = _equal(device=device, metric=metric, settled=True if settled_only else None)
        if since_ms is not None:
            width_ms = WINDOW_TABLES[table]
            from_ms = since_ms // width_ms * width_ms
            day = datetime.fromtimestamp(from_ms / 1000, UTC).date()
            recent = (ds.field(DAY.name) >= day) & (ds.field("start") >= pa.scalar(from_ms * 1000, INSTANT))
            chosen = recent if chosen is None else chosen & recent
        found = self.table(table, chosen)
        order = [("start", "descending"), ("device", "ascending"), ("metric", "ascending")]
        ordered = found.sort_by(order)
        return ordered if limit is None else ordered.slice(0, limit)

    def table(self, name: str, chosen: Any = None) -> pa.Table:
        """Returns the rows of a table that an expression of `pyarrow.dataset` chooses, as of the last pass."""
        version = self._manifest().versions.get(name)
        if version is None:
            return SPECS[name].schema.empty_table()
        try:
            delta = DeltaTable(self.place.child(name), version=version, storage_options=dict(self.place.options))
            files = self._files(name)
            return delta.to_pyarrow_dataset(schema=SPECS[name].schema, filesystem=files).to_table(filter=chosen)
        except (DeltaError, OSError) as error:
            raise SparkError(f"the table {self.place.child(name)} cannot be read: {reason(error)}") from error

    def _files(self, name: str) -> Any:
        """Returns the file system of a table in a directory; None elsewhere: then deltalake has its own.

        That one calls Python in threads of pyarrow's, which abort the process when it ends while one of them does.
        """
        local = self.place.local
        return None if local is None else SubTreeFileSystem(str((local / name).absolute()), LocalFileSystem())

    def _manifest(self) -> Manifest:
        return Manifest.load(self.place) or Manifest(job="", buckets=1)


def _equal(**wanted: object) -> Any:
    found = None
    for name, value in wanted.items():
        if value is not None:
            one = pc.field(name) == pa.scalar(value)
            found = one if found is None else found & one
    return found
