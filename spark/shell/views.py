"""A session with the log as the view `log`, and each telemetry table as a view of its name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from spark.errors import BadOption, SparkError
from spark.job.session import build_session
from spark.source.options import SourceOptions
from spark.tables.files import Location, reason
from spark.tables.manifest import Manifest
from spark.tables.schemas import SPECS

LOG: Final = "log"
_READ_OPTION: Final = "target"


def open_session(
    target: str = "127.0.0.1:8081",
    *,
    tables: str | Path | None = None,
    options: Mapping[str, str] | None = None,
    name: str = "headgate shell",
    cores: int = 2,
    driver_memory: str = "1g",
    master: str | None = None,
    local_dir: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns a session with the source and the views `log` and, of each table in `tables`, its name.

    `options` are the source's, for `log`. Raises `MissingJdk`, `BadOption`, `SparkError`.
    """
    chosen = {_READ_OPTION: target, **(options or {})}
    SourceOptions.parse(chosen)  # before a JVM is started for nothing
    place = None if tables is None else local_location(tables)
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


def local_location(tables: str | Path) -> Location:
    """Returns the directory of the tables. Raises `BadOption` for an object store, which Spark alone cannot read."""
    place = Location.of(tables)
    if place.local is None:
        raise BadOption(
            "tables", f"cannot be {tables}: views are made of tables on this machine; deltalake reads others"
        )
    return place


def refresh(session: SparkSession, place: Location | str | Path) -> list[str]:
    """Makes the views of the tables anew, as of the job's last pass, and returns their names. Raises `SparkError`."""
    place = place if isinstance(place, Location) else local_location(place)
    manifest = Manifest.load(place)
    found = []
    for name, version in sorted((manifest.versions if manifest is not None else {}).items()):
        spec = SPECS.get(name)
        if spec is None:
            continue
        try:
            files = DeltaTable(place.child(name), version=version).file_uris()
        except (DeltaError, OSError) as error:
            raise SparkError(f"the table {place.child(name)} cannot be read: {reason(error)}") from error
        if files:
            frame = session.read.option("basePath", place.child(name)).parquet(*files)
        else:
            frame = session.createDataFrame([], from_arrow_schema(spec.schema))
        frame.createOrReplaceTempView(name)
        found.append(name)
    return found
