"""`headgate spark`: the commands that need Spark, which is loaded only when they run."""

import code
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import typer

from gateway.cli.remote.options import HTTP_PORT, moved
from store.base.process_errors import HeadgateError

RPC_PORT = 8081
DAYS_MAX, HISTORY_H_MAX = 36_500, 876_000  # 100 years
ROWS_MAX: Final = 1_000  # that a statement shows, where --limit says nothing
OUTPUT = "headgate-data/telemetry"
_OF_OPTIONS: Final = {  # options of the job, and of what it reads and publishes with, that have another name here
    "caFile, certFile and keyFile": "ca-file, cert-file and key-file",
    "gatewayCaFile": "gateway-ca-file",
    "driver_memory": "memory",
    "forget_s": "forget",
    "history_h": "history",
    "late_s": "late",
    "progress_s": "progress",
    "rules": "config",
    "session_s": "session-gap",
    "trigger_s": "trigger",
    "watermark_s": "watermark",
}
FORMATS: Final = ("table", "csv", "json")

app = typer.Typer(help="Read the log with Spark.", no_args_is_help=True)


History = Annotated[
    int, typer.Option("--history", help="Hours in which replaced rows stay readable.", min=1, max=HISTORY_H_MAX)
]

OwnHistory = Annotated[
    int | None,
    typer.Option(
        "--history",
        help="Hours in which replaced rows stay readable.",
        min=1,
        max=HISTORY_H_MAX,
        show_default="that of the job",
    ),
]


class SparkFailed(HeadgateError):
    """Spark is not there, or refused."""


@app.callback()
def spark() -> None:
    """Read the log with Spark."""


@app.command()
def telemetry(
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Where the tables are written: a directory, or s3://bucket/path.")
    ] = OUTPUT,
    storage_option: Annotated[
        list[str] | None, typer.Option("--storage-option", help="Of the object store, NAME=VALUE; may be repeated.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", help="Where Spark keeps its position; below the output by default.")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Where the gateway is.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Its gRPC port.", min=1, max=65_535)] = RPC_PORT,
    port_offset: Annotated[int, typer.Option("--port-offset", help="The gateway's own port offset.", min=0)] = 0,
    target: Annotated[
        str | None,
        typer.Option("--target", help="Instead: HOST:PORT of the gRPC; of a cluster several, with commas."),
    ] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this; may be repeated.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Read the messages that there are now, then end.")] = False,
    trigger_s: Annotated[float, typer.Option("--trigger", help="Seconds from one batch to the next.", min=0)] = 2.0,
    watermark_s: Annotated[
        float, typer.Option("--watermark", help="Seconds after its end in which a window still takes records.", min=0)
    ] = 120.0,
    late_s: Annotated[
        float, typer.Option("--late", help="Seconds after its end in which a settled window is corrected.", min=0)
    ] = 7 * 86_400.0,
    samples: Annotated[bool, typer.Option("--samples", help="Keep each number and state as a row, too.")] = False,
    findings: Annotated[
        str | None,
        typer.Option(
            "--findings",
            help="URL of the HTTP port to publish findings at, as http://user:password@host:8080, of a cluster several "
            "with commas; none: not.",
            envvar="HEADGATE_FINDINGS_URL",
            show_default="the gateway's, at --host or the first of --target",
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option("--config", "--rules", help="A TOML file, such as headgate.toml: [\\[devices]], [\\[decode]]."),
    ] = None,
    starting_offsets: Annotated[
        str,
        typer.Option(
            "--starting-offsets",
            help="earliest, latest, a time as 2026-11-23T10:00:00Z, or JSON by queue; at the start.",
        ),
    ] = "earliest",
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", help="Where \\[cluster.tls] is set: PEM of the authorities; with the two below."),
    ] = None,
    cert_file: Annotated[Path | None, typer.Option("--cert-file", help="PEM of the job's certificate.")] = None,
    key_file: Annotated[Path | None, typer.Option("--key-file", help="PEM of its key.")] = None,
    gateway_ca_file: Annotated[
        Path | None,
        typer.Option(
            "--gateway-ca-file", help="PEM of the authorities of --findings with https.", show_default="usual"
        ),
    ] = None,
    session_s: Annotated[
        float, typer.Option("--session-gap", help="Seconds of silence that end a session of activity.", min=1)
    ] = 1_800.0,
    progress_s: Annotated[
        float, typer.Option("--progress", help="Seconds between two lines of progress; 0: none.", min=0)
    ] = 10.0,
    buckets: Annotated[int, typer.Option("--buckets", help="Parts of the state, fixed at the first start.", min=1)] = 4,
    devices_max: Annotated[int, typer.Option("--devices-max", help="Devices whose state is kept.", min=1)] = 1_000_000,
    forget_days: Annotated[
        float, typer.Option("--forget", help="Days without a record, until a device or metric is forgotten.", min=0)
    ] = 30.0,
    history: History = 6,
    memory: Annotated[str, typer.Option("--memory", help="Of Spark's driver, as 2g.")] = "1g",
    master: Annotated[str | None, typer.Option("--master", help="Of a Spark cluster, as spark://host:7077.")] = None,
    cores: Annotated[int, typer.Option("--cores", help="Of this machine.", min=1)] = 2,
) -> None:
    """Turn telemetry into windows, latest values and findings, as Delta tables, until SIGTERM or SIGINT."""
    if findings is None:
        near = host if target is None else target.partition(",")[0].rpartition(":")[0]
        findings = f"http://{near}:{moved(HTTP_PORT, port_offset)}"
    try:
        from spark import errors, job  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    try:
        job.run(
            job.TelemetryOptions(
                output=output,
                storage_options=dict(pair(text) for text in storage_option or ()),
                checkpoint=checkpoint,
                target=f"{host}:{moved(port, port_offset)}" if target is None else target,
                topics=tuple(topic or ()),
                once=once,
                trigger_s=trigger_s,
                watermark_s=watermark_s,
                late_s=late_s,
                samples=samples,
                findings=None if findings == "none" else findings,
                rules=rules,
                starting_offsets=starting_offsets,
                ca_file=ca_file and ca_file.absolute(),
                cert_file=cert_file and cert_file.absolute(),
                key_file=key_file and key_file.absolute(),
                gateway_ca_file=gateway_ca_file and gateway_ca_file.absolute(),
                devices_max=devices_max,
                forget_s=forget_days * 86_400,
                buckets=buckets,
                history_h=history,
                driver_memory=memory,
                master=master,
                cores=cores,
                session_s=session_s,
                progress_s=progress_s,
            ),
            say=_say,
        )
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    except errors.BadOption as error:
        raise SparkFailed(f"option {_OF_OPTIONS.get(error.name, error.name.replace('_', '-'))} {error.why}") from error
    except errors.SparkError as error:
        raise SparkFailed(str(error)) from error


def _say(line: str) -> None:
    """Prints a line of progress. A terminal that is gone, or a full disk under a log file, ends no job."""
    with suppress(OSError):
        typer.echo(line)


Target = Annotated[
    str, typer.Option("--target", help="Host and port of the gateway's gRPC; of a cluster several, with commas.")
]
TablesIn = Annotated[
    str | None,
    typer.Option(
        "--tables", help="The telemetry tables: a directory, or s3://bucket/path; the default where it is there."
    ),
]
StorageOptions = Annotated[
    list[str] | None, typer.Option("--storage-option", help="Of the object store, NAME=VALUE; may be repeated.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", help="Of the data source, for the view log, NAME=VALUE; may be repeated."),
]
Memory = Annotated[str, typer.Option("--memory", help="Of Spark's driver, as 2g.")]
Cores = Annotated[int, typer.Option("--cores", help="Of this machine.", min=1)]
Master = Annotated[str | None, typer.Option("--master", help="Of a Spark cluster, as spark://host:7077.")]
_TARGET: Final = f"127.0.0.1:{RPC_PORT}"


@app.command("sql")
def run_sql(
    statement: Annotated[str, typer.Argument(help="SQL; semicolons divide several; - reads them from standard input.")],
    *,
    target: Target = _TARGET,
    tables_in: TablesIn = None,
    storage_option: StorageOptions = None,
    option: Options = None,
    form: Annotated[str, typer.Option("--format", help="table, csv or json (lines).")] = "table",
    limit: Annotated[int, typer.Option("--limit", help="Rows shown of each statement.", min=1)] = ROWS_MAX,
    memory: Memory = "1g",
    cores: Cores = 2,
    master: Master = None,
) -> None:
    """Run SQL over the log (the view `log`) and the telemetry tables (views of their names)."""
    if form not in FORMATS:
        raise SparkFailed(f"option format cannot be {form!r}: it must be one of {', '.join(FORMATS)}")
    settings = {"driver_memory": memory, "cores": cores, "master": master}
    with _session(target, tables_in, storage_option, option, **settings) as (session, place):
        from spark.shell import statements  # noqa: PLC0415 - an extra, and slow to load

        for one in statements.split(sys.stdin.read() if statement == "-" else statement):
            for line in statements.text_of(session, one, form, limit, tables_in=OUTPUT if place is None else place.url):
                typer.echo(line)


@app.command("shell")
def run_shell(
    *,
    target: Target = _TARGET,
    tables_in: TablesIn = None,
    storage_option: StorageOptions = None,
    option: Options = None,
    memory: Memory = "1g",
    cores: Cores = 2,
    master: Master = None,
) -> None:
    """Open a Python shell with a session: `spark`, `log`, `sql(...)`, and `refresh()` for the tables."""
    settings = {"driver_memory": memory, "cores": cores, "master": master}
    with _session(target, tables_in, storage_option, option, **settings) as (session, place):
        from spark.shell import refresh  # noqa: PLC0415 - an extra, and slow to load

        names = {
            "spark": session,
            "log": session.table("log"),
            "sql": lambda text: session.sql(text).show(truncate=False),
            "refresh": lambda: refresh(session, place) if place is not None else [],
        }
        views = ", ".join(sorted(table.name for table in session.catalog.listTables()))
        code.interact(f"spark, log, sql(text), refresh(); views: {views}", local=names, exitmsg="")


@app.command()
def package(
    file: Annotated[Path, typer.Argument(help="The zip to write, as headgate.zip.")],
) -> None:
    """Write the package that `spark-submit --py-files` ships to a cluster."""
    try:
        from spark.job.package import write_package  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    try:
        count = write_package(file)
    except OSError as error:
        raise SparkFailed(f"{file} cannot be written: {error.strerror or error}") from error
    typer.echo(f"{count:,} modules in {file}; spark-submit --py-files {file} job.py")


@contextmanager
def _session(
    target: str, tables_in: str | None, storage_option: list[str] | None, option: list[str] | None, **settings: Any
) -> Iterator[tuple[Any, Any]]:
    """Opens a session, and finds its tables. Its temporary files are removed in the end. Raises `SparkFailed`."""
    where = tables_in if tables_in is not None else OUTPUT if (Path(OUTPUT) / "manifest.json").exists() else None
    given = dict(pair(text, "option") for text in option or ())
    storage = dict(pair(text) for text in storage_option or ())
    try:
        from spark import errors, shell  # noqa: PLC0415 - an extra, and slow to load
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    try:
        place = None if where is None else shell.location_of(where, storage)
        with TemporaryDirectory(prefix="headgate-spark-", ignore_cleanup_errors=True) as scratch:
            session = shell.open_session(target, tables=place, options=given, local_dir=Path(scratch), **settings)
            try:
                yield session, place
            finally:
                session.stop()
    except errors.SparkError as error:
        raise SparkFailed(str(error)) from error


tables = typer.Typer(help="Look after the telemetry job's tables.", no_args_is_help=True)
app.add_typer(tables, name="tables")

Where = Annotated[str, typer.Option("--output", "-o", help="Where the tables are: a directory, or s3://bucket/path.")]


@tables.callback()
def _tables() -> None:
    """Look after the telemetry job's tables."""


@tables.command()
def describe(*, output: Where = OUTPUT, storage_option: StorageOptions = None) -> None:
    """Show every table: version, rows, files, bytes."""
    for table in _maintained("describe", output, storage_option):
        typer.echo(
            f"{table.name}: version {table.version}, {table.rows:,} rows in {table.files:,} files, "
            f"{table.size_bytes:,} bytes; columns {', '.join(table.columns)}"
        )


@tables.command()
def compact(*, output: Where = OUTPUT, storage_option: StorageOptions = None, history: OwnHistory = None) -> None:
    """Merge small files. The job must be stopped; a running one does it by itself."""
    fewer = _maintained("compact", output, storage_option, history_h=history)
    typer.echo(f"{fewer:,} files fewer")


@tables.command()
def vacuum(*, output: Where = OUTPUT, storage_option: StorageOptions = None, history: OwnHistory = None) -> None:
    """Delete files that were replaced longer ago than the history. The job must be stopped."""
    typer.echo(f"{_maintained('vacuum', output, storage_option, history_h=history):,} files deleted")


@tables.command()
def expire(
    *,
    days: Annotated[
        int, typer.Option("--days", help="How many days are kept, today not counted.", min=0, max=DAYS_MAX)
    ],
    output: Where = OUTPUT,
    storage_option: StorageOptions = None,
    history: OwnHistory = None,
) -> None:
    """Take rows of longer ago out of all tables that keep days. The job must be stopped."""
    gone = _maintained("expire", output, storage_option, days=days, history_h=history)
    typer.echo(f"{gone:,} files gave way; vacuum deletes them after the history")


def _maintained(what: str, output: str, storage_option: list[str] | None, **settings: int | None) -> Any:
    try:
        from spark import errors  # noqa: PLC0415 - an extra, and slow to load
        from spark.job import maintenance  # noqa: PLC0415
        from spark.tables.files import Location  # noqa: PLC0415
    except ImportError as error:
        raise SparkFailed(f"Spark is not installed ({error.name}); pip install 'headgate[spark]'") from error
    try:
        place = Location.of(output, dict(pair(text) for text in storage_option or ()))
        return getattr(maintenance, what)(place, **settings)
    except errors.SparkError as error:
        raise SparkFailed(str(error)) from error


def pair(text: str, of: str = "storage-option") -> tuple[str, str]:
    """Takes an option NAME=VALUE apart. Raises `SparkFailed`."""
    name, found, value = text.partition("=")
    if not found or not name:
        raise SparkFailed(f"option {of} cannot be {text!r}: it must be NAME=VALUE")
    return name, value
