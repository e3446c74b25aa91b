"""Streaming queries of tests, run to their end on a machine that may be busy."""

ATTEMPTS = 6
OVERLOADED = "Python worker failed to connect back"  # within the 10 s that Spark gives it


def run_query(writer) -> None:
    """Starts a query and waits for its end; again where Spark gave up on a worker before it was asked anything."""
    from pyspark.errors import StreamingQueryException

    for attempt in range(1, ATTEMPTS + 1):
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            if attempt == ATTEMPTS or OVERLOADED not in str(error):
                raise
        else:
            return
