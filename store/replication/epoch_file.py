"""The file beside the log that keeps its epochs."""

import errno
from pathlib import Path

from store.disk.files import Files
from store.replication.epochs import EpochList, decode_epochs, encode_epochs

EPOCH_FILE = "epochs"
_NEW = ".new"


class EpochFile:
    """Written anew with every change: after a crash there is the old list or the new one, whole.

    Saved before a frame of a new epoch is written, and after frames that the list no longer covers were cut off the
    log: so no frame ever lies in an epoch it was not written in.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self.path = directory / EPOCH_FILE

    def load(self) -> tuple[EpochList, int] | None:
        """Returns the list and the newest known epoch; None when nothing was ever saved.

        Raises `BadEpochs` when the file is damaged: `EpochList.of_frames` makes the list from the log, and the
        controller must be asked for the promised epoch. Raises OSError.
        """
        if EPOCH_FILE not in self._files.names(self._directory):
            return None
        file = self._files.open(self.path)
        try:
            return decode_epochs(file.pread(file.size(), 0))
        finally:
            file.close()

    def save(self, epochs: EpochList, promised: int) -> None:
        """Replaces the file; on disk when this returns, an empty list too. Raises OSError."""
        data = encode_epochs(epochs, promised)
        new = self.path.with_name(EPOCH_FILE + _NEW)
        if new.name in self._files.names(self._directory):
            self._files.unlink(new)
        file = self._files.open(new, create=True)
        try:
            done = 0
            while done < len(data):
                some = file.pwritev([data[done:]], done)
                if some <= 0:
                    raise OSError(errno.EIO, "a write made no progress", str(new))
                done += some
            file.sync()
        finally:
            file.close()
        self._files.rename(new, self.path)
        self._files.sync_directory(self._directory)
