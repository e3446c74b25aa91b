"""One look at the tables: all of them as of one pass of the job, in a DuckDB that reads nothing else."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from spark.errors import SparkError
from spark.tables.files import Location, reason
from spark.tables.manifest import JobProgress, Manifest
from spark.tables.schemas import SPECS

MEMORY_LIMIT = "512MB"  # of one query
THREADS_COUNT = 2
QUERY_S_MAX = 10.0
ROWS_MAX = 20_000  # of one result
RESULT_BYTES_MAX = 64 * 1024 * 1024
_BATCH_ROWS = 512


class QueryStopped(SparkError):
    """A query that took too long."""


class Result(NamedTuple):
    """Rows of a query, and whether there were more than were asked for."""

    rows: pa.Table
    more: bool


class Reading:
    """The tables as of one pass, as views of a DuckDB in memory that can open no file and no connection."""

    def __init__(self, manifest: Manifest, tables: Mapping[str, Any]) -> None:
        self.progress: JobProgress = manifest.progress
        self.counts: Mapping[str, Mapping[str, int]] = manifest.counts
        self.names = sorted(tables)
        self._con = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": MEMORY_LIMIT,
                "threads": THREADS_COUNT,
                "python_enable_replacements": "false",  # no name of a query is a variable of this process
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            },
        )
        for name, table in tables.items():
            self._con.register(name, table)
        for setting in (
            "temp_directory = ''",  # DuckDB spills no data to disk
            "TimeZone = 'UTC'",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self._con.execute(f"SET {setting}")

    @property
    def empty(self) -> bool:
        """Returns whether the job has committed nothing yet."""
        return not self.names

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        """Returns the rows of a query, as dictionaries."""
        found: list[dict[str, Any]] = self.table(sql, values).rows.to_pylist()
        return found

    def table(
        self, sql: str, values: Sequence[object] = (), *, rows_max: int = ROWS_MAX, seconds_max: float = QUERY_S_MAX
    ) -> Result:
        """Returns the first rows of a query. Raises `QueryStopped`, and `SparkError` for one that DuckDB refuses."""
        clock = threading.Timer(seconds_max, self._con.interrupt)
        clock.daemon = True
        clock.start()
        try:
            relation = self._con.sql(sql, params=list(values))
            if relation is None:
                return Result(pa.table({}), more=False)
            return _first(relation.to_arrow_reader(_BATCH_ROWS), rows_max)
        except duckdb.InterruptException:
            raise QueryStopped(f"the query took longer than {seconds_max:g} s and was stopped; choose less") from None
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if "interrupt" in str(error).lower():
                raise QueryStopped(f"the query took longer than {seconds_max:g} s and was stopped") from None
            raise SparkError(str(error).strip()) from error
        finally:
            clock.cancel()

    def statements(self, sql: str) -> list[Any]:
        """Returns the statements of a text, as DuckDB parses it. Raises `SparkError`."""
        try:
            return list(self._con.extract_statements(sql))
        except duckdb.Error as error:
            raise SparkError(str(error).strip()) from error

    def close(self) -> None:
        """Releases the database."""
        self._con.close()


def _first(reader: Any, rows_max: int) -> Result:
    batches, count, size = [], 0, 0
    while count <= rows_max:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            break
        batches.append(batch)
        count += batch.num_rows
        size += batch.nbytes
        if size > RESULT_BYTES_MAX:
            raise SparkError(f"the result is larger than {RESULT_BYTES_MAX // 2**20} MiB: choose fewer columns or rows")
    found = pa.Table.from_batches(batches, schema=reader.schema)
    return Result(found.slice(0, rows_max), more=count > rows_max)


class TelemetryTables:
    """The output of a telemetry job, which may be running. Shared by all threads."""

    def __init__(self, where: str | Path, options: Mapping[str, str] | None = None) -> None:
        self.place = Location.of(where, options)
        self._lock = threading.Lock()
        self._open: dict[str, tuple[int, Any]] = {}  # table -> its version, and the files of that version

    @contextmanager
    def read(self) -> Iterator[Reading]:
        """Opens the tables as of the last pass. Raises `SparkError` when they cannot be read."""
        try:
            manifest = Manifest.load(self.place) or Manifest(job="", buckets=1)
            tables = {name: self._dataset(name, version) for name, version in manifest.versions.items()}
        except (DeltaError, OSError) as error:
            raise SparkError(f"the tables in {self.place.url} cannot be read: {reason(error)}") from error
        reading = Reading(manifest, tables)
        try:
            yield reading
        finally:
            reading.close()

    def _dataset(self, name: str, version: int) -> ds.Dataset:
        with self._lock:
            found = self._open.get(name)
            if found is None or found[0] != version:
                delta = DeltaTable(self.place.child(name), version=version, storage_options=dict(self.place.options))
                spec = SPECS.get(name)
                found = (version, delta.to_pyarrow_dataset(schema=spec.schema if spec else None))
                self._open[name] = found
            return found[1]
