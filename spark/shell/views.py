"""A session with the log as the view `log`, and each telemetry table as a view of its name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark.errors import BadOption, SparkError
from spark.job.session import build_session
from spark.shell.table_source import FORMAT, TableSource
from spark.source.options import SourceOptions
from spark.tables.files import Location, reason
from spark.tables.manifest import Manifest
from spark.tables.schemas import SPECS

LOG: Final = "log"
_READ_OPTION: Final = "target"


def open_session(
    target: str = "127.0.0.1:8081",
    *,
    tables: Location | str | Path | None = None,
    storage_options: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    name: str = "headgate shell",
    cores: int = 2,
    driver_memory: str = "1g",
    master: str | None = None,
    local_dir: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns a session with the source and the views `log` and, of each table in `tables`, its name.

    `options` are the source's, for `log`; `storage_options` those of an object store that has the tables. Raises
    `MissingJdk`, `BadOption`, `SparkError`.
    """
    chosen = {_READ_OPTION: target, **(options or {})}
    SourceOptions.parse(chosen)  # before a JVM is started for nothing
    place = None if tables is None else location_of(tables, storage_options)
    session = build_session(
        name, cores=cores, driver_memory=driver_memory, master=master, local_dir=local_dir, settings=settings
    )
    add_log(session, chosen)
    if place is not None:
        refresh(session, place)
    return session


def add_log(session: SparkSession, options: Mapping[str, str]) -> None:
    """Makes the view `log`: the log as the source reads it with these options. Every query reads it anew."""
    session.read.format("headgate").options(**options).load().createOrReplaceTempView(LOG)


def location_of(tables: Location | str | Path, storage_options: Mapping[str, str] | None = None) -> Location:
    """Returns the place of the tables. Raises `BadOption`."""
    if isinstance(tables, Location):
        return tables
    try:
        return Location.of(tables, storage_options)
    except BadOption as error:
        raise BadOption("tables", error.why) from error


def refresh(session: SparkSession, place: Location | str | Path) -> list[str]:
    """Makes the views of the tables anew, as of the job's last pass, and returns their names. Raises `SparkError`."""
    place = location_of(place)
    manifest = Manifest.load(place)
    if place.local is None:
        session.dataSource.register(TableSource)
    found = []
    for name, version in sorted((manifest.versions if manifest is not None else {}).items()):
        if name not in SPECS:
            continue
        make = _remote if place.local is None else _local
        make(session, place, name, version).createOrReplaceTempView(name)
        found.append(name)
    return found


def _local(session: SparkSession, place: Location, name: str, version: int) -> DataFrame:
    """Returns a table in a directory; columns that its older files lack are null there. Raises `SparkError`."""
    schema = from_arrow_schema(SPECS[name].schema)
    try:
        files = DeltaTable(place.child(name), version=version).file_uris()
    except (DeltaError, OSError) as error:
        raise SparkError(f"the table {place.child(name)} cannot be read: {reason(error)}") from error
    if files:
        read = session.read.schema(schema).option("basePath", place.child(name))
        return read.parquet(*files)
    return session.createDataFrame([], schema)


def _remote(session: SparkSession, place: Location, name: str, version: int) -> DataFrame:
    """Returns a table in an object store."""
    reader = session.read.format(FORMAT).options(place=place.url, table=name, version=str(version))
    return reader.option("storage", json.dumps(dict(place.options))).load()
