"""Which replica of its group a data directory is: the file `replica` in it.

An id is given once, and a crash may come between any two steps of being given one. So a node asks for the next id,
keeps it in `replica.asked` with a check code of its own making, registers, and only then renames the file. After a
crash it registers again by whichever file there is: the id is its own, or by another check code somebody else's; then
the file is worth nothing.

Logs of different clusters look alike: both begin with epoch 1. So a directory with a log joins as the replica that the
controllers know it as, and else only before its group has had a master: so the log of a single node becomes a group's.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from controller.client import ControllerClient, Group, Replica, ReplicaIdTaken
from store.errors import ForeignLog, WrongGroup
from store.files import Files, OsFiles
from store.segment import segment_start
from store.small_file import read_small_file, write_small_file

__all__ = ["ReplicaIdentity", "register"]

logger = logging.getLogger(__name__)

_GIVEN, _ASKED = "replica", "replica.asked"
CHECK_BYTES = 16


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """A replica of a group: its id, and the code that proves it."""

    group: int
    id: int
    check: str


async def register(
    controller: ControllerClient,
    data_dir: Path,
    group: int,
    about: Callable[[int, str], Replica],
    *,
    files: Files | None = None,
) -> tuple[ReplicaIdentity, Group]:
    """Be a replica of a group, and let the controllers know where it is now. Done again at every start.

    `about` makes the `Replica` of an id and a check code.

    Raises `ControllerError`, `WrongGroup`, `ForeignLog`, OSError.
    """
    files = files if files is not None else OsFiles()
    with_log = await asyncio.to_thread(_has_log, files, data_dir)
    while True:
        found = await asyncio.to_thread(_load, files, data_dir)
        if found is None:
            next_id = await controller.next_replica_id(group)
            found = ReplicaIdentity(group, next_id, secrets.token_hex(CHECK_BYTES))
            await asyncio.to_thread(write_small_file, files, data_dir / _ASKED, found)
        if found.group != group:
            raise WrongGroup(f"{data_dir} is of replica {found.id} of store group {found.group}, not of group {group}")
        if with_log:
            await controller.barrier()
            _check_known(controller.group(group), found, data_dir)
        try:
            registered = await controller.register_replica(group, about(found.id, found.check))
        except ReplicaIdTaken as taken:
            logger.info("another id is asked for: %s", taken)
            await asyncio.to_thread(_forget, files, data_dir)
            continue
        await asyncio.to_thread(_keep, files, data_dir, found)
        return found, registered


def _check_known(group: Group | None, found: ReplicaIdentity, data_dir: Path) -> None:
    """Raises `ForeignLog` for a log that nobody knows where others are."""
    if group is None or not group.sync_set:
        return
    known = group.replica(found.id)
    if known is None or known.check != found.check:
        raise ForeignLog(
            f"{data_dir} has a log that store group {group.number} knows nothing of: it is another cluster's, or its "
            "replica was forgotten; name an empty directory, which is filled from the others"
        )


def _has_log(files: Files, data_dir: Path) -> bool:
    if "log" not in files.names(data_dir):
        return False
    starts = [name for name in files.names(data_dir / "log") if segment_start(name) is not None]
    if len(starts) != 1:
        return bool(starts)
    file = files.open(data_dir / "log" / starts[0])
    try:
        return file.size() > 0
    finally:
        file.close()


def _load(files: Files, data_dir: Path) -> ReplicaIdentity | None:
    given = read_small_file(files, data_dir / _GIVEN, ReplicaIdentity)
    return given if given is not None else read_small_file(files, data_dir / _ASKED, ReplicaIdentity)


def _keep(files: Files, data_dir: Path, found: ReplicaIdentity) -> None:
    if read_small_file(files, data_dir / _GIVEN, ReplicaIdentity) != found:
        files.rename(data_dir / _ASKED, data_dir / _GIVEN)
        files.sync_directory(data_dir)


def _forget(files: Files, data_dir: Path) -> None:
    names = files.names(data_dir)
    for name in (_GIVEN, _ASKED):
        if name in names:
            files.unlink(data_dir / name)
    files.sync_directory(data_dir)
