"""The two files beside the log that keep its epochs."""

import errno
from contextlib import closing
from pathlib import Path

from store.disk.files import Files, write_whole
from store.replication.epochs import OF_OLDER_VERSION, EpochList, SavedEpochs, decode_epochs, encode_epochs
from store.replication.errors import BadEpochs

EPOCH_FILES = ("epochs", "epochs.copy")
_NEW = ".new"


class EpochFile:
    """The list in two files, each written anew with every change: after a crash each has the old list or the new one.

    Each tells how often the list was saved, and the one that was saved more often counts. So neither a damaged file nor
    a write that a disk has lost without a word makes an older list the log's.

    Saved before a frame of a new epoch is written, and after frames that the list no longer covers were cut off the
    log: so no frame ever lies in an epoch it was not written in.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.path = directory / EPOCH_FILES[0]
        self.saves = 0  # how often the list was saved, or was begun to be
        self.whole = False  # both files had the list that was loaded

    def load(self) -> tuple[EpochList, int] | None:
        """Returns the list and the newest known epoch; None when nothing was ever saved.

        Raises `BadEpochs` when no file is whole: `EpochList.of_frames` makes the list from the log, and the controller
        must be asked for the promised epoch. Raises OSError.
        """
        there, self.whole = set(self._files.names(self._directory)), False
        found: list[SavedEpochs] = []
        trouble: BadEpochs | OSError | None = None
        for name in EPOCH_FILES:
            if name in there:
                try:
                    found.append(self._read(self._directory / name))
                except BadEpochs as error:
                    trouble = BadEpochs(f"{name}: {error}")
                except OSError as error:
                    if error.errno != errno.EIO:  # a sector that cannot be read, say
                        raise
                    trouble = error
        if not found:
            if trouble is not None:
                raise trouble
            return None
        newest = max(found, key=lambda one: one.saves)
        older = found[0] if found[0].saves == OF_OLDER_VERSION else None
        if older is not None and older.promised >= newest.promised:
            newest = older  # an older version, which writes one file alone, has gone on since the other was written
        self.saves = max(self.saves, *(one.saves for one in found))
        self.whole = found == [newest] * len(EPOCH_FILES)
        return newest.epochs, newest.promised

    def _read(self, path: Path) -> SavedEpochs:
        with closing(self._files.open(path)) as file:
            return decode_epochs(file.pread(file.size(), 0))

    def save(self, epochs: EpochList, promised: int, *, beyond: int = 0) -> None:
        """Replaces the files; on disk when this returns, an empty list too. Counts as later than `beyond` saves.

        Raises OSError: then the list on disk is the earlier one or this one, and has to be saved again.
        """
        self.saves = max(self.saves, beyond) + 1
        data = encode_epochs(SavedEpochs(epochs, promised, self.saves))
        for name in EPOCH_FILES:  # a full disk shows here, while both files have the earlier list
            self._write_new(name, data)
        for name in EPOCH_FILES:
            self._files.rename(self._directory / (name + _NEW), self._directory / name)
            self._files.sync_directory(self._directory)

    def _write_new(self, name: str, data: bytes) -> None:
        path = self._directory / (name + _NEW)
        if path.name in self._files.names(self._directory):
            self._files.unlink(path)
        with closing(self._files.open(path, create=True)) as file:
            write_whole(file, data, 0)
            file.sync()
