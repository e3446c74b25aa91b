"""Housekeeping: periodic work that no caller waits for, in one thread."""

import logging
from collections.abc import Callable, Sequence
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple

logger = logging.getLogger(__name__)


class Chore(NamedTuple):
    """A task to do every `interval_s` seconds, counted from the end of the last time."""

    interval_s: float
    work: Callable[[], None]


class Housekeeper:
    """Does chores one after the other until it is stopped. A chore that fails is logged and done again when due."""

    def __init__(self, chores: Sequence[Chore]) -> None:
        self._chores = chores
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="store-keep", daemon=True)

    def start(self) -> None:
        """Begins; the first time each chore is due is after its interval."""
        self._thread.start()

    @property
    def stopped(self) -> bool:
        """Returns whether `stop` was called: a chore that takes long looks here."""
        return self._stopped.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits within a chore; returns whether it should end now."""
        return self._stopped.wait(seconds)

    def stop(self) -> None:
        """Ends after the chore in progress. Again does nothing."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        due = [monotonic() + chore.interval_s for chore in self._chores]
        while not self._stopped.wait(max(min(due) - monotonic(), 0)):
            for i, chore in enumerate(self._chores):
                if due[i] > monotonic():
                    continue
                try:
                    chore.work()
                except Exception:
                    logger.exception("housekeeping has failed and is tried again later")
                due[i] = monotonic() + chore.interval_s
