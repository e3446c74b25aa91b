"""Which store group a data directory belongs to: the file `group` in it.

A directory opened as another group's would have its offsets taken for those of another log.
"""

import logging
from pathlib import Path

import msgspec

from store.errors import WrongGroup
from store.files import Files
from store.format import group_of
from store.segment import segment_start
from store.small_file import read_small_file, write_small_file

__all__ = ["belong_to"]

logger = logging.getLogger(__name__)

_NAME = "group"


class _Identity(msgspec.Struct, frozen=True):
    group: int


def belong_to(files: Files, data_dir: Path, group: int) -> None:
    """Let a data directory be a group's, durably. Raises `WrongGroup` where it is another one's, OSError.

    A log without the file is of an older version, or of a copy that left the file out: its first offset tells as well.
    """
    names = files.names(data_dir)
    logs = files.names(data_dir / "log") if "log" in names else ()
    starts = [start for name in logs if (start := segment_start(name)) is not None]
    of_log = group_of(min(starts)) if starts else None
    known = read_small_file(files, data_dir / _NAME, _Identity)
    for found in (known.group if known is not None else None, of_log):
        if found not in {None, group}:
            raise WrongGroup(f"{data_dir} belongs to store group {found}, and is opened as that of group {group}")
    if known is not None:
        return
    if _NAME in names and of_log is None:
        raise WrongGroup(f"{data_dir / _NAME} is damaged, and there is no log that says which group it is of")
    write_small_file(files, data_dir / _NAME, _Identity(group))
