"""Streaming queries of tests, on a machine that may be busy."""

import time
from collections.abc import Callable
from pathlib import Path

from tests.support.process.waiting import wait_until

PATIENCE_S = 240  # of starting a query again
OVERLOADED = "Python worker failed to connect back"  # within the 10 s that Spark gives it


def run_query(writer) -> None:
    """Starts a query and waits for its end; again where Spark gave up on a worker before it was asked anything."""
    from pyspark.errors import StreamingQueryException

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return writer.start().awaitTermination()
        except StreamingQueryException as error:
            if time.monotonic() > deadline or OVERLOADED not in str(error):
                raise


def started_query(writer, begun: Callable[[], bool]):
    """Returns a query that has begun; starts it again where Spark gave up on a worker before it was asked anything."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        query = writer.start()
        wait_until(lambda query=query: begun() or query.exception() is not None, timeout_s=PATIENCE_S)
        failure = query.exception()
        if failure is None:
            return query
        if time.monotonic() > deadline or OVERLOADED not in str(failure):
            raise failure


def count_once(session, target: str, output: str | Path, **options):
    """Makes one run of the telemetry query over what is stored, and returns the tables."""
    from spark.job.options import TelemetryOptions
    from spark.job.query import Signals, follow, settings_of
    from spark.tables.commits import Commits
    from spark.tables.reader import Tables

    options = TelemetryOptions(output=output, target=target, once=True, retry_s=5, **options)
    commits = Commits.open(options.place, options.checkpoint_dir, settings_of(options))
    try:
        follow(session, options, commits, Signals())
    finally:
        commits.close()
    return Tables(output, options.storage_options)
