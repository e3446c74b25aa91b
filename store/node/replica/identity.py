"""The identity of a data directory as a replica of its group: the file `replica` in it.

An id is given once, and a crash may come between any two steps of being given one. So a node asks for the next id,
keeps it in `replica.asked` with a check code of its own making, registers, and only then renames the file. After a
crash it registers again by whichever file there is. The id is then its own, or, with another check code, another
replica's; in that case the file is worth nothing.

The file has a copy, `replica.copy`: without its id and check code nothing proves whose a log is. The copy is written
when the file is on disk, and goes with it; it counts only where the file is damaged or gone.

Logs of different clusters look alike: both begin with epoch 1. So a directory keeps the id of its cluster, and a log
has an id (`store.engine.identity`), which the controllers compare. Besides, a directory with a log joins as the replica
that the controllers know it as, or before its group has had a master: so the log of a single node becomes a group's.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec

from controller.api.client import (
    ControllerClient,
    Group,
    KnownMetadata,
    MetadataForgotten,
    Replica,
    ReplicaIdTaken,
    UnknownGroup,
    WrongLog,
)
from controller.api.commands import RegisterReplica
from controller.api.requests import CompareMetadata
from store.base.errors import ForeignCluster, ForeignLog, MetadataWentBack, WrongGroup
from store.disk.files import Files, OsFiles
from store.disk.small_file import read_small_file, write_small_file
from store.engine.identity import log_id, name_log, new_log_id
from store.log.segment import segment_start
from store.replication.epoch_file import EpochFile
from store.replication.errors import BadEpochs

logger = logging.getLogger(__name__)

_GIVEN, _COPY, _ASKED = "replica", "replica.copy", "replica.asked"
CHECK_BYTES = 16
_INSTEAD = "name an empty directory, which is filled from the others"


class ReplicaIdentity(msgspec.Struct, frozen=True):
    """A replica of a group of a cluster: its id, and the code that proves it."""

    group: int
    id: int
    check: str
    cluster: str = ""  # empty: of an older version


async def register(
    controller: ControllerClient,
    data_dir: Path,
    group: int,
    about: Callable[[int, str], Replica],
    *,
    files: Files | None = None,
    opened: bool = False,
    known: KnownMetadata | None = None,
) -> tuple[ReplicaIdentity, Group]:
    """Registers a replica of a group, and lets the controllers know where it is now. Done again at every start.

    `about` makes the `Replica` of an id and a check code. `opened`: there is a log, though nothing may be in it.
    `known` is the metadata that this directory has seen.

    Raises `ControllerError`, `WrongGroup`, `ForeignCluster`, `ForeignLog`, `MetadataWentBack`, OSError.
    """
    files = files if files is not None else OsFiles()
    with_log = opened or await asyncio.to_thread(_has_log, files, data_dir)
    await controller.barrier()
    while True:
        found = await asyncio.to_thread(kept_identity, data_dir, files)
        if found is not None:
            _check(found, group, controller.cluster, data_dir)
        elif with_log:  # of the records of another log the controllers need not have known
            await asyncio.to_thread(_known_log, files, data_dir, controller.group(group), found)
        if known is not None:
            await _compare(controller, known, data_dir)
        log = await asyncio.to_thread(_log_of, files, data_dir, controller.group(group), found) if with_log else ""
        if found is None:
            there = controller.group(group)
            if there is None:
                raise UnknownGroup(f"there is no store group {group}")
            found = ReplicaIdentity(group, there.next_replica, secrets.token_hex(CHECK_BYTES), controller.cluster)
            await asyncio.to_thread(write_small_file, files, data_dir / _ASKED, found)
        try:
            replica = msgspec.structs.replace(about(found.id, found.check), log=log)
            registered = await controller.do(RegisterReplica(group=group, replica=replica))
        except ReplicaIdTaken as taken:
            logger.info("requesting another replica id: %s", taken)
            await asyncio.to_thread(_forget, files, data_dir)
            continue
        except WrongLog as wrong:
            raise ForeignLog(f"{data_dir} cannot join: {wrong}; {_INSTEAD}") from wrong
        await asyncio.to_thread(_check_epoch, files, data_dir, registered)
        identity = msgspec.structs.replace(found, cluster=controller.cluster)
        await asyncio.to_thread(_keep, files, data_dir, identity)
        return identity, registered


def why_retired(group: Group, id_: int) -> str:
    """Returns why a replica that was registered takes no part in its group any more, "" while it does.

    A group that is known from before it was registered does not have its id yet.
    """
    if group.replica(id_) is not None or id_ >= group.next_replica:
        return ""
    return (
        f"store group {group.number} has no replica {id_} any more, it was retired or forgotten: stop this store, and "
        "start it on an empty directory to join as another one"
    )


def _check(found: ReplicaIdentity, group: int, cluster: str, data_dir: Path) -> None:
    """Raises `WrongGroup`, `ForeignCluster`."""
    if found.group != group:
        raise WrongGroup(
            f"{data_dir} is of replica {found.id} of store group {found.group}, not of store group {group}: "
            "set store.group or store.data_dir"
        )
    if found.cluster not in {"", cluster}:
        raise ForeignCluster(
            f"{data_dir} is of cluster {found.cluster}, and the controllers are of cluster {cluster}: set "
            "store.data_dir or cluster.controllers"
        )


async def _compare(controller: ControllerClient, known: KnownMetadata, data_dir: Path) -> None:
    """Raises `MetadataWentBack` if the controllers' leader has less metadata than this directory has seen."""
    try:
        await controller.do(CompareMetadata(known=known))
    except MetadataForgotten as error:
        raise MetadataWentBack(f"{error} (compared with {data_dir})") from error


def _check_epoch(files: Files, data_dir: Path, group: Group) -> None:
    """Raises `MetadataWentBack` if the controllers' leader gives an epoch older than this directory knows."""
    try:
        kept = EpochFile(files, data_dir).load()
    except BadEpochs:
        return  # it is looked for in the log
    promised = 0 if kept is None else kept[1]
    if group.master_epoch < promised:
        raise MetadataWentBack(
            f"the controllers have forgotten committed metadata: store group {group.number} was at epoch {promised} by "
            f"{data_dir}, and is at {group.master_epoch}; nothing of them is believed; start the controllers that "
            "have it"
        )


def _log_of(files: Files, data_dir: Path, group: Group | None, found: ReplicaIdentity | None) -> str:
    """Returns the id of the log in a directory, its own for one of an older version. Raises `ForeignLog`, OSError."""
    log = _known_log(files, data_dir, group, found)
    if not log and group is not None:
        log = group.log or new_log_id()
        name_log(files, data_dir, group.number, log)
    return log


def _known_log(files: Files, data_dir: Path, group: Group | None, found: ReplicaIdentity | None) -> str:
    """Returns the id of the log in a directory, if it has one. Raises `ForeignLog`: it is not the group's, OSError."""
    log = log_id(files, data_dir)
    if group is None:  # which is reported when an id is asked for
        return log
    if log and group.log not in {"", log}:
        raise ForeignLog(f"{data_dir} has log {log}, and that of store group {group.number} is {group.log}; {_INSTEAD}")
    known = group.replica(found.id) if found is not None else None
    if group.sync_set and (known is None or found is None or known.check != found.check):
        raise ForeignLog(
            f"{data_dir} has a log that store group {group.number} knows nothing of: it is another cluster's, its "
            f"replica was forgotten, or its file {_GIVEN!r} and the copy {_COPY!r} are damaged or gone; {_INSTEAD}"
        )
    return log


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


def kept_identity(data_dir: Path, files: Files | None = None) -> ReplicaIdentity | None:
    """Returns the replica whose directory it is; None: it is none's. Raises OSError."""
    files = files if files is not None else OsFiles()
    for name in (_GIVEN, _COPY, _ASKED):
        if (found := read_small_file(files, data_dir / name, ReplicaIdentity)) is not None:
            return found
    return None


def _keep(files: Files, data_dir: Path, found: ReplicaIdentity) -> None:
    if read_small_file(files, data_dir / _GIVEN, ReplicaIdentity) != found:
        if read_small_file(files, data_dir / _ASKED, ReplicaIdentity) == found:
            files.rename(data_dir / _ASKED, data_dir / _GIVEN)
            files.sync_directory(data_dir)
        else:  # it is known from the copy, or of an older version, which did not name its cluster
            write_small_file(files, data_dir / _GIVEN, found)
    if read_small_file(files, data_dir / _COPY, ReplicaIdentity) != found:
        write_small_file(files, data_dir / _COPY, found)


def _forget(files: Files, data_dir: Path) -> None:
    names = files.names(data_dir)
    for name in (_GIVEN, _COPY, _ASKED):
        if name in names:
            files.unlink(data_dir / name)
    files.sync_directory(data_dir)
