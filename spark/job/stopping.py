"""The end of a job by SIGTERM or SIGINT: signals that are noted, and what a Spark that ends by the same one says."""

import logging
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from spark.errors import SparkError
from spark.job.failures import job_error

_LOGGERS = ("", "py4j.clientserver", "py4j.java_gateway")  # the root's too: py4j logs some errors there
_PY4J = "py4j"
_POLL_S = 0.1
JAVA_ENDS_S: Final = 30.0  # within which Java ends by a signal, however long its hooks take
_BY_SIGNAL: Final = frozenset(
    status for number in (signal.SIGTERM, signal.SIGINT) for status in (-number, 128 + number)
)  # of a process that such a signal has ended; Java says it in the second way
_SPARK_ENDS: Final = re.compile(
    "SparkContext was (stopped|shut ?down|cancelled)|stopped SparkContext"
    "|Python worker (exited|failed to connect back)",
    re.IGNORECASE,
)
_GONE: Final = (
    "Spark's Java process has ended: start the job again, which goes on with the batch it had, and give it more memory "
    "(option memory) if the system has ended it for want of that"
)


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


class StoppedBySignal(Exception):
    """Spark has ended by the signal that asked the job to stop. A batch that it interrupted is done again."""


class FailureJudge:
    """Tells a failure of the job from the end of Spark by the signal that asked the job to stop."""

    def __init__(self, session: SparkSession, asked: Signals, disks: str) -> None:
        self._session, self._asked, self._disks = session, asked, disks

    def error_of(self, what: str, failure: BaseException) -> Exception:
        """Returns the error to raise for a failure: `StoppedBySignal`, or `SparkError` with `what` has failed.

        A signal has stopped Spark if Java's process ends by it, too. A worker that crashes, or a Java that the system
        kills, after the job was asked to stop is a failure like any other.
        """
        lost = isinstance(failure, ConnectionError) or (
            isinstance(failure, Py4JError) and not isinstance(failure, Py4JJavaError)
        )
        if self._asked.stop.is_set() and (lost or _SPARK_ENDS.search(str(failure))) and self._java_is_told():
            return StoppedBySignal()
        return SparkError(_GONE) if lost else job_error(what, str(failure), self._disks)

    def _java_is_told(self) -> bool:
        """Returns whether Java ends by a signal; waits for that, as Spark's workers end sooner than Java."""
        java = self._java()
        until = time.monotonic() + JAVA_ENDS_S
        while time.monotonic() < until:
            if self._asked.now:  # the user waits no longer
                return True
            if java is None:
                if self._context_is_stopped():
                    return True
            elif java.poll() is not None:
                break
            time.sleep(_POLL_S)
        return java is not None and java.poll() in _BY_SIGNAL

    def _java(self) -> "subprocess.Popen[bytes] | None":
        """Returns Java's process; None where Java has started this one."""
        gateway: Any = self._session.sparkContext._gateway  # noqa: SLF001  # it is nowhere else
        java: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
        return java

    def _context_is_stopped(self) -> bool:
        context: Any = self._session.sparkContext
        try:
            return bool(context._jsc.sc().isStopped())  # noqa: SLF001
        except (Py4JError, ConnectionError, AttributeError):  # Java is gone; PySpark has noted that it stopped
            return True


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
