"""The directory of a single node before its commands were a Raft log: opened once, and never written again.

b"state"       index u64, big-endian | the newest snapshot of `MetadataState`
index u64      a command
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path

import lmdb

from controller.api.client import ControllerDamaged, ControllerError
from controller.api.commands import decode_command
from controller.metadata.state import MetadataState
from controller.raft import Membership, RaftMember, StorageFailed, first_snapshot
from controller.raft.lmdb_storage import LmdbStorage, new_incarnation
from store.disk.lmdb_file import is_cut_short

RAFT = "raft"  # the directory of the log, in the controller's
OLD = "data.mdb"
KEPT = "data-before-raft.mdb"  # the old file's name when the log has all of it
_SNAPSHOT = b"state"
_DAMAGED = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError)


def open_storage(directory: Path, node_id: int, members: Mapping[int, str]) -> LmdbStorage:
    """Opens or begins a controller's directory; `members` are a new cluster's first ones; empty: it will be added.

    One that is alone begins its cluster now, several do so when all of them have been heard.

    A cluster of one begins with the state that a single node left there. Raises `ControllerDamaged`, `StorageFailed`,
    `ControllerError`: it is not alone, OSError.
    """
    path = directory / RAFT
    old = _read(directory / OLD)
    if old is not None and list(members) != [node_id]:
        raise ControllerError(f"{directory} has a single node's metadata: start it alone, and let the others join it")
    incarnation = new_incarnation()
    first = None
    if list(members) == [node_id]:  # several have to meet before there is a cluster
        member = RaftMember(id=node_id, address=members[node_id], incarnation=incarnation)
        first = first_snapshot(Membership.of(member), b"" if old is None else old.snapshot())
    storage = LmdbStorage.open(path, node_id, first=first, incarnation=incarnation)
    if old is not None:
        (directory / OLD).rename(directory / KEPT)
        (directory / "lock.mdb").unlink(missing_ok=True)
    return storage


def _read(path: Path) -> MetadataState | None:
    """Returns the state in an older version's file; None without one. Raises `ControllerDamaged`, `StorageFailed`."""
    if not path.exists():
        return None
    if is_cut_short(path):  # LMDB would find out by a signal that kills the process
        raise ControllerDamaged(f"{path} has lost its end: restore the directory from a backup")
    try:
        with contextlib.closing(lmdb.open(str(path.parent), max_dbs=0, readonly=True)) as env:
            return _replayed(env)
    except (ControllerDamaged, *_DAMAGED) as error:
        raise ControllerDamaged(f"{path.parent}: {error}: restore the directory from a backup") from error
    except lmdb.Error as error:
        raise StorageFailed(f"{path.parent}: {error}") from error


def _replayed(env: lmdb.Environment) -> MetadataState:
    """Returns the newest snapshot with the commands since. Raises `ControllerDamaged`."""
    state, index = MetadataState(), 0
    with env.begin() as txn:
        held = txn.get(_SNAPSHOT)
        if held is not None:
            index = int.from_bytes(held[:8], "big")
            state = MetadataState.restore(held[8:])
        for key, value in txn.cursor():
            if key != _SNAPSHOT and int.from_bytes(key, "big") > index:
                command = decode_command(value)
                with contextlib.suppress(ControllerError):  # refused then, and so again now
                    state.apply(command)
    return state
