"""The ledger of damages: stretches of the log that hold no sound frame and are not repaired yet.

It outlives the process, in the file `damages` of the data directory, so that a restart knows the damage at once.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec

from store.disk.files import Files
from store.disk.small_file import read_small_file, write_small_file
from store.format.frame import LogOffset

logger = logging.getLogger(__name__)

DAMAGES_FILE = "damages"
DAMAGES_KEPT_COUNT_MAX = 1_000  # ranges; beyond, the two that are closest to each other become one
BY_SEAL = "seal"  # by the digest of a segment whose frames are sound one by one
_VERSION = 1


class Damage(NamedTuple):
    """A damaged range of the log: the segment it begins in, both its ends at frame boundaries, the cause and finder."""

    segment: str
    start: LogOffset
    end: LogOffset
    why: str
    found_by: str  # "recovery", "start", "read", "scrub", "seal", "replication", "election", "verify"


class _Saved(msgspec.Struct, frozen=True):
    version: int
    repaired: int
    damages: Sequence[tuple[str, int, int, str, str]]


class DamageLedger:
    """The open damages of one log: disjoint, in the order of the log. Any thread may use it.

    A damage stays open until the range is repaired, deleted by retention or cut off. Without `files` nothing is kept
    beyond the process.
    """

    def __init__(self, files: Files | None = None, path: Path | None = None) -> None:
        """Reads the file of an earlier process at `path`. Raises OSError."""
        self._files = files
        self._path = path
        self._lock = Lock()
        self._open: list[Damage] = []  # disjoint, ascending; len <= DAMAGES_KEPT_COUNT_MAX
        self.repaired_count = 0  # damages closed by a repair, since the directory was begun
        self.on_damage: Callable[[], None] = lambda: None  # a new damage is known; on the thread that reports it
        self.on_repair: Callable[[], None] = lambda: None  # a range is repaired; on the thread that says so
        if files is None or path is None:
            return
        saved = read_small_file(files, path, _Saved)
        if saved is not None and saved.version == _VERSION:
            self._open = [Damage(name, LogOffset(at), LogOffset(to), *rest) for name, at, to, *rest in saved.damages]
            self.repaired_count = saved.repaired

    @property
    def count(self) -> int:
        """The number of open damages."""
        return len(self._open)

    def open(self) -> list[Damage]:
        """Returns the open damages, by log offset."""
        with self._lock:
            return list(self._open)

    def overlapping(self, start: LogOffset, end: LogOffset) -> list[Damage]:
        """Returns the open damages that share a byte with a range."""
        if not self._open:
            return []
        with self._lock:
            return [one for one in self._open if one.start < end and one.end > start]

    def distrusted(self, start: LogOffset, end: LogOffset) -> list[Damage]:
        """Returns the damages of a range whose frames are sound, but do not belong there."""
        return [one for one in self.overlapping(start, end) if one.found_by == BY_SEAL]

    def report(self, damage: Damage) -> None:
        """Takes note of a damage; logged, kept and told when something of it was not known yet."""
        with self._lock:
            touched = [one for one in self._open if one.start < damage.end and one.end > damage.start]
            if any(one.start <= damage.start and damage.end <= one.end for one in touched):
                return
            first = min([*touched, damage], key=lambda one: one.start)
            whole = first._replace(end=max(one.end for one in (*touched, damage)))
            if any(one.found_by == BY_SEAL for one in (*touched, damage)):
                whole = whole._replace(found_by=BY_SEAL)
            self._open = sorted([*(one for one in self._open if one not in touched), whole], key=lambda one: one.start)
            self._bound()
            self._save()
        logger.error("the log is damaged", extra=damage._asdict())
        self.on_damage()

    def repaired(self, start: LogOffset, end: LogOffset) -> None:
        """Closes the open damages of a range, which holds sound frames again."""
        with self._lock:
            left = self._without(start, end)
            if left == self._open:
                return
            self.repaired_count += max(len(self._open) - len(left), 0)
            self._open = left
            self._save()
        logger.warning("a damaged range of the log is repaired", extra={"start": start, "end": end})
        self.on_repair()

    def verified(self, start: LogOffset, end: LogOffset) -> None:
        """Closes the open damages of a range that was read and found sound: it was repaired, or the finder was wrong.

        Damages that were found by the digest of a whole segment stay: each of its frames is sound by itself.
        """
        for one in self.overlapping(start, end):
            if one.found_by != BY_SEAL:
                self.repaired(max(start, one.start), min(end, one.end))

    def forget(self, start: LogOffset, end: LogOffset) -> None:
        """Drops the open damages of a range that does not belong to the log any more: deleted or cut off."""
        if not self.overlapping(start, end):
            return
        with self._lock:
            self._open = self._without(start, end)
            self._save()

    def _without(self, start: LogOffset, end: LogOffset) -> list[Damage]:
        left: list[Damage] = []
        for one in self._open:
            if one.end <= start or one.start >= end:
                left.append(one)
                continue
            if one.start < start:
                left.append(one._replace(end=start))
            if one.end > end:
                left.append(one._replace(start=end))
        return left

    def _bound(self) -> None:
        """Makes one of the two ranges with the smallest gap between them where there are too many."""
        found = self._open
        while len(found) > DAMAGES_KEPT_COUNT_MAX:
            i = min(range(len(found) - 1), key=lambda i: found[i + 1].start - found[i].end)
            found[i : i + 2] = [found[i]._replace(end=found[i + 1].end)]

    def _save(self) -> None:
        if self._files is None or self._path is None:
            return
        try:
            write_small_file(self._files, self._path, _Saved(_VERSION, self.repaired_count, list(self._open)))
        except OSError as error:
            logger.warning(
                "the file `damages` cannot be written: known damage is forgotten at a restart",
                extra={"error": str(error)},
            )
