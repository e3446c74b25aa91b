"""Listeners: functions that are called at an event, until each of them stops listening."""

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

logger = logging.getLogger(__name__)

P = ParamSpec("P")


class Listeners(Generic[P]):
    """The listeners on one subject, in the order in which they came. They belong to one thread."""

    def __init__(self, subject: str) -> None:
        """Begins without listeners; log lines name the subject."""
        self._subject = subject
        self._held: dict[int, Callable[P, object]] = {}
        self._count = 0  # of all that ever came

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, listener: Callable[P, object]) -> Callable[[], None]:
        """Adds a listener. Returns a function that stops it; a second call does nothing."""
        number = self._count
        self._count += 1
        self._held[number] = listener

        def stop() -> None:
            self._held.pop(number, None)

        return stop

    def tell(self, *news: P.args, **more: P.kwargs) -> None:
        """Calls all listeners. One that fails is logged, and the others are called all the same."""
        for listener in list(self._held.values()):
            try:
                listener(*news, **more)
            except Exception:
                logger.exception("a listener on %s has failed", self._subject)
