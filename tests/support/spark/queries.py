"""Streaming queries of tests, on a machine that may be busy."""

import time
from collections.abc import Callable

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
