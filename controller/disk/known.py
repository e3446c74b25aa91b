"""The controllers' last addresses, kept by a node beside its data.

A node's configuration may name controllers that are gone. The file, a store's `controllers`, holds an address a line.
It may be lost: then the configuration has to name one that is there.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

_BYTES_MAX = 64 * 1024


class KnownControllers:
    """The known addresses; `kept` are those that were kept last."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept = self._load()

    def learn(self, addresses: Sequence[str]) -> None:
        """Keeps where the controllers are now, if that is known and is news. A failure to keep it is logged."""
        found = tuple(dict.fromkeys(address for address in addresses if address))
        if not found or found == self.kept or not self._path.parent.is_dir():
            return
        new = self._path.with_name(self._path.name + ".new")
        try:
            new.write_text("".join(f"{address}\n" for address in found), "utf-8")
            new.replace(self._path)
        except OSError as error:
            logger.warning("%s cannot be written: %s; the configuration has to name a controller", self._path, error)
        else:
            self.kept = found

    def _load(self) -> tuple[str, ...]:
        try:
            with self._path.open("rb") as file:
                text = file.read(_BYTES_MAX).decode("utf-8", errors="replace")
        except OSError:
            return ()
        return tuple(line for line in text.splitlines() if line)
