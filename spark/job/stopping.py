"""The end of a job by SIGTERM or SIGINT: signals that are noted, and the noise of a Spark that ends by the same one."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyspark.sql import SparkSession

_LOGGERS = ("", "py4j.clientserver", "py4j.java_gateway")  # the root's too: py4j logs some errors there
_PY4J = "py4j"


class Interrupted(BaseException):
    """The job was asked to stop while it waited for what has no end of its own, as Spark's start."""


class Signals:
    """SIGTERM and SIGINT, noted while this is entered; `stop` is set by the first, `now` by the second."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.now = False
        self._raises = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Lets a signal raise `Interrupted` in the main thread, where nothing has begun that must be finished."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.now = self.stop.is_set()
        self.stop.set()
        if self._raises:
            self._raises = False  # once: another signal must not cut the cleaning up short
            raise Interrupted


@contextmanager
def quiet(asked: Signals, session: SparkSession) -> Iterator[None]:
    """Keeps py4j and PySpark from printing tracebacks once the job was asked to stop.

    A signal to all processes of a service ends Java too; every call of it that is still open then fails, which is no
    news. Errors of before are printed as ever.
    """

    def keep(record: logging.LogRecord) -> bool:
        return not (asked.stop.is_set() and _PY4J in record.pathname)

    server = getattr(session.sparkContext, "_accumulatorServer", None)  # it prints errors without a logger
    print_error = getattr(server, "handle_error", None)

    def handle_error(*request: Any) -> None:
        if print_error is not None and not asked.stop.is_set():
            print_error(*request)

    if server is not None:
        server.handle_error = handle_error
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)
