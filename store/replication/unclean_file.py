"""The file `unclean` beside the log: the newest unclean election that the log has followed.

A replica gives up the lost end of its log once for each unclean election, and never for one that it has followed: the
frames written since then were acknowledged anew.
"""

import logging
from pathlib import Path

import msgspec

from store.disk.files import Files
from store.disk.small_file import read_small_file, write_small_file

logger = logging.getLogger(__name__)

UNCLEAN_FILE = "unclean"
_EVERY = (1 << 63) - 1


class _Saved(msgspec.Struct, frozen=True):
    epoch: int


def load_unclean(files: Files, directory: Path) -> int:
    """Returns the epoch of the newest unclean election that the log has followed; 0: of none. Raises OSError.

    Of a damaged file it may be any, so nothing is given up any more.
    """
    path = directory / UNCLEAN_FILE
    if path.name not in files.names(directory):
        return 0
    found = read_small_file(files, path, _Saved)
    if found is None:
        logger.error(
            "%s is damaged: if this log has lost its end it is not given up; start the node on an empty directory then",
            path,
        )
        return _EVERY
    return found.epoch


def save_unclean(files: Files, directory: Path, epoch: int) -> None:
    """Keeps the epoch of an unclean election that the log follows; on disk when this returns. Raises OSError."""
    write_small_file(files, directory / UNCLEAN_FILE, _Saved(epoch))
