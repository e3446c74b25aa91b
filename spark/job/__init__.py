"""The telemetry job: its options, the session, the query, and the work on one bucket.

The command line and the demonstration run it. Nothing of Spark is loaded until `run` is called.

Imported by: shell, gateway.cli.
Imports: spark.*, store.base, store.remoting.
"""

from collections.abc import Callable

from spark.job.options import TelemetryOptions

__all__ = ["TelemetryOptions", "run"]


def run(options: TelemetryOptions, say: Callable[[str], None] | None = None) -> None:
    """Runs the telemetry job until it ends (`once`), fails, or the process gets SIGTERM or SIGINT.

    `say` gets lines about its progress, in the main thread.
    A signal lets the batch in progress be committed, then ends the job; a second one ends it at once. Raises
    `MissingJdk`, `OutputBusy`, `OutputMismatch` before anything starts, and `SparkError` when the query fails. To be
    called in the main thread.
    """
    from spark.job.query import run_telemetry  # noqa: PLC0415  # pyspark is an extra, and takes a second to load

    run_telemetry(options, say)
