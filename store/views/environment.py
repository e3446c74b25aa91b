"""The views' LMDB environment: its options, and the meaning of its errors."""

from pathlib import Path
from typing import Any

import lmdb

from store.base.errors import StoreFull
from store.disk.files import FILE_MODE, OsFiles
from store.disk.lmdb_file import is_mapped_beyond
from store.views.layout import DBS_MAX, MAP_BYTES_MAX, check_pages

DAMAGED = (
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)  # LMDB raises these for pages that are not as it has written them
_READERS_MAX = 126
_SPARE_READERS = 8  # read transactions kept for the next reader
_OTHER_FORMAT = "data format"  # py-lmdb says so in an error that has no class of its own
_ROOM_BYTES_MIN = 1 << 20  # for LMDB's writes through a map: without room for them a signal kills the process


def open_environment(path: Path, map_size_bytes: int) -> Any:
    """Opens or creates the environment. Raises one of `DAMAGED`, `StoreFull`, other `lmdb.Error`, OSError."""
    file = path / "data.mdb"
    check_pages(file)
    if is_mapped_beyond(file, MAP_BYTES_MAX):
        raise lmdb.CorruptedError(f"{file} says that it is larger than any views are")
    files = OsFiles()
    files.make_directory(path)
    if not (path / "lock.mdb").exists() and (free := files.free_bytes(path)) < _ROOM_BYTES_MIN:
        raise StoreFull(f"the views need {_ROOM_BYTES_MIN} bytes to begin with, and {free} are free")
    # metasync off: a crash may take back the newest transaction, which the log then gives again, but never
    # leaves a torn one; one sync a transaction instead of two.
    try:
        return lmdb.open(
            str(path),
            map_size=map_size_bytes,
            max_dbs=DBS_MAX,
            max_readers=_READERS_MAX,
            max_spare_txns=_SPARE_READERS,
            metasync=False,
            meminit=False,
            mode=FILE_MODE,
        )
    except lmdb.MapResizedError as error:
        raise lmdb.CorruptedError(str(error)) from error
    except lmdb.Error as error:
        if _OTHER_FORMAT in str(error):
            raise lmdb.VersionMismatchError(str(error)) from error
        raise
