"""The identity of a data directory: its store group and its log. It is the file `group` in the directory.

A directory opened as another group's would have its offsets taken for those of another log. Logs of one number look
alike in all clusters; so each has an id by chance. The log of a single node has it from the beginning; a replica is
told that of its group, before it writes a frame.
"""

import logging
import secrets
from pathlib import Path

import msgspec

from store.base.errors import WrongGroup
from store.disk.files import Files
from store.disk.small_file import read_small_file, write_small_file
from store.format.frame import group_of
from store.log.segment import segment_start

logger = logging.getLogger(__name__)

_NAME = "group"
LOG_ID_BYTES = 8  # by chance


class _Identity(msgspec.Struct, frozen=True):
    group: int
    log: str = ""  # empty: of no group yet, or of an older version


def belong_to(files: Files, data_dir: Path, group: int, *, alone: bool = False) -> None:
    """Lets a data directory be a group's, durably. Raises `WrongGroup` where it is another one's, OSError.

    A log without the file is of an older version, or of a copy that left the file out: its first offset tells as well.
    `alone`: no other replica has this log, so it gets an id here if it has none.
    """
    names = files.names(data_dir)
    logs = files.names(data_dir / "log") if "log" in names else ()
    starts = [start for name in logs if (start := segment_start(name)) is not None]
    of_log = group_of(min(starts)) if starts else None
    known = read_small_file(files, data_dir / _NAME, _Identity)
    for found in (known.group if known is not None else None, of_log):
        if found not in {None, group}:
            raise WrongGroup(
                f"{data_dir} belongs to store group {found}, and is opened as that of store group {group}: set "
                "store.group or store.data_dir"
            )
    if known is not None and (known.log or not alone):
        return
    if known is None and _NAME in names and of_log is None:
        raise WrongGroup(f"{data_dir / _NAME} is damaged, and there is no log that says which group it is of")
    name_log(files, data_dir, group, new_log_id() if alone else "")


def new_log_id() -> str:
    """Returns an id that no other log has."""
    return secrets.token_hex(LOG_ID_BYTES)


def log_id(files: Files, data_dir: Path) -> str:
    """Returns the id of the log in a data directory; empty: it has none. Raises OSError."""
    known = read_small_file(files, data_dir / _NAME, _Identity)
    return known.log if known is not None else ""


def name_log(files: Files, data_dir: Path, group: int, log: str) -> None:
    """Lets the log of a group in a data directory be this one, durably. Raises OSError."""
    write_small_file(files, data_dir / _NAME, _Identity(group, log))
