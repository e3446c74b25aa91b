"""The health of a data directory's views: their known damage, and whether they are to be made anew.

Two small files tell the next process. `views.damaged` is there from the moment in which damage is met until the views
were set aside, so that a restart makes them anew. `views.watch` says whether a thread works on pages that may kill the
process (LMDB maps its file, and follows a pointer with a flipped bit) and how often in a row a process has died there:
after `DEATHS_MAX` times the views are not opened again.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import NamedTuple

import msgspec

from store.base.errors import ViewsDamaged
from store.disk.files import FILE_MODE, OsFiles
from store.disk.small_file import read_small_file, write_small_file

logger = logging.getLogger(__name__)

DAMAGES_KEPT = 100  # reported in full; beyond, they are only counted
DEATHS_MAX = 3  # processes in a row that die while they open or verify the views, or begin to write
SETTLED_WRITES = 8  # transactions after which writing has shown that it does not kill

_MARKER, _WATCH = "views.damaged", "views.watch"
_IDLE, _BUSY = b"-", b"+"
_SETTLED = b"="  # idle, and writing has shown that it does not kill


_REMEDY = {
    True: "It is made anew from the log when the store is opened again",
    False: "The log has lost its beginning, so it is not made anew by itself: put the views of a copy in its place, or "
    "accept the loss (headgate store rebuild-views --force); start a replica with an empty directory instead",
}


class ViewDamage(NamedTuple):
    """A damage in a view, and how it was found."""

    view: str
    why: str
    found_by: str  # "read", "verification", "restart"


class _Marker(msgspec.Struct, frozen=True):
    view: str
    why: str


class ViewsHealth:
    """The known state of a data directory's views. Any thread may use it.

    `on_damage` is called once, in the thread that met the damage first.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        """Reads an earlier process's files; without a directory nothing is kept. Raises OSError."""
        self._files = OsFiles()  # LMDB has no other
        self._data_dir = data_dir
        self._lock = RLock()
        self._damages: dict[tuple[str, str], ViewDamage] = {}  # len <= DAMAGES_KEPT
        self.count = 0  # of different ones, those not kept too
        self.on_damage: Callable[[], None] = lambda: None
        self._depth = 0
        self._writes = 0  # transactions since the start, up to SETTLED_WRITES
        self._whole = False  # a verification has gone through all since the start
        self._watch_fd: int | None = None
        self.deaths = 0
        self.rebuildable = True  # from the log, when the store is opened again
        self._left = ""  # the error that an earlier process met
        if data_dir is not None:
            self._load(data_dir)

    def _load(self, data_dir: Path) -> None:
        self._files.make_directory(data_dir)
        names = self._files.names(data_dir)
        if _MARKER in names:
            found = read_small_file(self._files, data_dir / _MARKER, _Marker)
            self._left = f"{found.view}: {found.why}" if found is not None else "unknown damage"
        if _WATCH in names:
            state = (data_dir / _WATCH).read_bytes()
            self.deaths = int(state[1:2]) if state[1:2].isdigit() else 0
            if state[:1] == _BUSY:
                self.deaths = min(self.deaths + 1, 9)
                logger.warning("a process died while it read or wrote the views", extra={"times": self.deaths})
            elif state[:1] == _SETTLED:  # that process did not die of them: the deaths before it are not in a row
                self.deaths = 0

    # ---- damage

    @property
    def condemned(self) -> str:
        """Returns why the views are to be made anew before they are read; empty: they are not."""
        if self.may_crash:
            return f"{self.deaths} processes in a row have died while they opened or verified the views"
        return f"the views are damaged: {self._left}" if self._left else ""

    @property
    def may_crash(self) -> bool:
        """Returns whether the views are not to be opened at all, as too many processes have died of them."""
        return self.deaths >= DEATHS_MAX

    @property
    def is_damaged(self) -> bool:
        """Returns whether something that the views hold cannot be served."""
        return self.count > 0

    @property
    def damages(self) -> list[ViewDamage]:
        """Returns the damages that are kept, in the order in which they were met."""
        with self._lock:
            return list(self._damages.values())

    def report(self, view: str, why: str, found_by: str = "read") -> ViewsDamaged:
        """Reports a damage that was met: it is logged and kept the first time. Returns the error to raise."""
        error = ViewsDamaged(f"the store's view {view!r} is damaged: {why}. {_REMEDY[self.rebuildable]}")
        with self._lock:
            if (view, why) in self._damages or self.count >= DAMAGES_KEPT:
                return error
            self._damages[view, why] = ViewDamage(view, why, found_by)
            self.count += 1
            first = self.count == 1
            logger.error("a view is damaged", extra={"view": view, "why": why, "found_by": found_by})
            if first and self._data_dir is not None and not self._left:
                self._mark(self._data_dir, view, why)
        if first:
            self.on_damage()
        return error

    def remember(self) -> None:
        """Takes over the damage that an earlier process has met, as the views stay."""
        self.report(*(self._left.partition(": ")[::2]), found_by="restart")

    def _mark(self, data_dir: Path, view: str, why: str) -> None:
        try:
            write_small_file(self._files, data_dir / _MARKER, _Marker(view, why))
        except OSError as error:
            logger.warning(
                "the damage of the views cannot be recorded: the next start will not know of it",
                extra={"error": str(error)},
            )

    def renewed(self) -> None:
        """Forgets the damage of views that were set aside, or replaced. Raises OSError."""
        with self._lock:
            self._damages.clear()
            self.count, self.deaths, self._left = 0, 0, ""
            self.close()
            if self._data_dir is None:
                return
            for name in {_MARKER, _WATCH} & set(self._files.names(self._data_dir)):
                self._files.unlink(self._data_dir / name)
            self._files.sync_directory(self._data_dir)

    # ---- work that may kill the process

    @contextmanager
    def at_risk(self) -> Iterator[None]:
        """Notes, while it is entered, that the views' pages are looked at for the first time."""
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                self._watch(_BUSY)
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if not self._depth:
                    self._watch(self._idle)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Notes, while it is entered, that a transaction writes."""
        if self._writes >= SETTLED_WRITES:
            yield
            return
        with self.at_risk():
            yield
        self._writes += 1
        self._settle()

    def verified(self) -> None:
        """Notes that all pages were read since the start, and the process lives."""
        self._whole = True
        self._settle()

    def _settle(self) -> None:
        if self.deaths and self._writes >= SETTLED_WRITES:
            with self._lock:
                if self._whole:
                    self.deaths = 0
                self._watch(_BUSY if self._depth else self._idle)

    @property
    def _idle(self) -> bytes:
        return _SETTLED if self.deaths and self._writes >= SETTLED_WRITES else _IDLE

    def _watch(self, state: bytes) -> None:
        """Writes the state without a sync: it is read after a crash of the process, not of the machine."""
        if self._data_dir is None:
            return
        try:
            if self._watch_fd is None:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                self._watch_fd = os.open(self._data_dir / _WATCH, flags, FILE_MODE)
            os.pwrite(self._watch_fd, state + str(self.deaths).encode(), 0)
        except OSError as error:
            logger.warning(
                "the file `views.watch` cannot be written: a crash while the views are written would go unnoticed",
                extra={"error": str(error)},
            )

    def close(self) -> None:
        """Gives the file back. A clean close resets the count of deaths, once all views have been verified."""
        with self._lock:
            if self.deaths and self._whole and not self._depth:
                self.deaths = 0
                self._watch(_IDLE)
            fd, self._watch_fd = self._watch_fd, None
            if fd is not None:
                os.close(fd)
