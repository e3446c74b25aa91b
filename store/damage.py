"""Damage: stretches of the log that hold no valid frame, whoever met them. Told once, kept to be asked for."""

import logging
from threading import Lock
from typing import NamedTuple

from store.format import LogOffset

__all__ = ["DAMAGES_KEPT", "Damage", "DamageLog"]

logger = logging.getLogger(__name__)

DAMAGES_KEPT = 1_000  # told of in full; beyond, they are only counted


class Damage(NamedTuple):
    """Where the log is damaged: in which segment, from which byte of the log to which, and how that was found."""

    segment: str
    start: LogOffset
    end: LogOffset
    why: str
    found_by: str  # "recovery", "read", "scrub"


class DamageLog:
    """All damage that was met since the start. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._found: dict[LogOffset, Damage] = {}  # by where it begins; len <= DAMAGES_KEPT
        self.count = 0  # of different places, those not kept too

    def report(self, damage: Damage) -> None:
        """Somebody has met damage; the first time it is logged."""
        with self._lock:
            if damage.start in self._found:
                return
            self.count += 1
            if len(self._found) < DAMAGES_KEPT:
                self._found[damage.start] = damage
        logger.error("the log is damaged", extra=damage._asdict())

    def all(self) -> list[Damage]:
        """What is kept, by log offset."""
        with self._lock:
            return [self._found[at] for at in sorted(self._found)]
