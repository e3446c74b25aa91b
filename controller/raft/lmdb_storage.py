"""A Raft node's durable state in LMDB: one synced transaction for each `Ready` that has to be kept."""

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import lmdb
import msgspec

from controller.raft import lmdb_records
from controller.raft.errors import Compacted, StorageDamaged, StorageFailed, StorageFull
from controller.raft.file_mark import FileMark, mark_of
from controller.raft.lmdb_records import MemoryIdentity, StoredSummary
from controller.raft.messages import Entry, HardState, Index, Snapshot, Term, entry_bytes
from controller.raft.ready import Ready
from controller.raft.sealing import SealFile
from store.disk.files import said_of_data_dir
from store.disk.lmdb_file import is_broken, is_cut_short
from store.disk.presence import identity_of, is_in_place
from store.disk.space import is_for_want_of_room

MAP_SIZE_BYTES = 4 << 30  # of address space, not of disk
LOCK = "raft.lock"
ADVICE = (
    "This controller takes no part, as it might vote twice: start it with an empty directory, and the others take it "
    'in again and send it all (docs/cluster.md, "When controllers are lost"); if it is the only one, put a copy of the '
    "directory in its place"
)
INCARNATION_BYTES = 16  # by chance


class LmdbStorage:
    """A `Storage` that survives.

    `save` and the reading methods may run in two threads. A node that has lost its directory would vote twice, and lack
    entries that it had acknowledged (paper, 5.2 and figure 2): so it has another incarnation, which no membership
    names. `copied` says that the directory was copied or restored since it was written, so it may be an old one.
    """

    def __init__(
        self, env: lmdb.Environment, lock: int, held: StoredSummary, identity: MemoryIdentity, seal: SealFile
    ) -> None:
        self.env = env
        self._seal = seal
        self._lock = lock
        self._held = held
        self._identity = identity
        self.copied = identity.file != _file_of(env)
        self._file = Path(env.path()) / "data.mdb"
        self._opened = identity_of(self._file)
        self._unwritten: HardState | None = None  # a commit index that waits for something that has to be synced

    @classmethod
    def open(
        cls,
        directory: Path,
        node_id: int,
        *,
        first: Snapshot | None = None,
        incarnation: str = "",
        map_size_bytes: int = MAP_SIZE_BYTES,
    ) -> "LmdbStorage":
        """Opens a node's directory, or begins it with `first` and `incarnation`, which say nothing where there is one.

        Raises `StorageDamaged`; `StorageFailed` where another process has it or it is another node's; OSError.
        """
        with contextlib.ExitStack() as undo:
            with said_of_data_dir(directory):
                for missing in [path for path in reversed((directory, *directory.parents)) if not path.exists()]:
                    missing.mkdir(mode=0o700, exist_ok=True)
                lock = _lock(directory)
            undo.callback(os.close, lock)
            if is_cut_short(directory / "data.mdb"):  # LMDB would find out by a signal that kills the process
                raise StorageDamaged(f"{directory / 'data.mdb'} has lost its end. {ADVICE}")
            if is_broken(directory / "data.mdb"):
                raise StorageDamaged(f"the pages of {directory / 'data.mdb'} do not fit together. {ADVICE}")
            with _failures(directory, StorageDamaged):
                seal = SealFile(directory)
                undo.callback(seal.close)
                env = lmdb.open(str(directory), map_size=map_size_bytes, max_dbs=0, mode=0o600)
                undo.callback(env.close)
                with env.begin() as txn:
                    new = lmdb_records.is_new(txn)
                if new and seal.newest is not None:
                    raise StorageDamaged(f"{directory} has lost its contents")
                if new:
                    with env.begin(write=True) as txn:
                        identity = MemoryIdentity(incarnation=incarnation or new_incarnation(), file=_file_of(env))
                        lmdb_records.begin(txn, node_id, identity, first or Snapshot())
                        lmdb_records.number(txn)
                with env.begin() as txn:
                    held = lmdb_records.recover(txn, directory, node_id)
                    seal.check(lmdb_records.check_number(txn, directory, sealed=seal.newest is not None), held)
                if seal.newest is None:  # of an older version, or new
                    with env.begin(write=True) as txn:
                        lmdb_records.number(txn)
                identity = _identity(env)
            storage = cls(env, lock, held, identity, seal)
            storage._write_seal(held)
            undo.pop_all()
        return storage

    def close(self) -> None:
        """Closes. Writes that did not have to be synced yet are forgotten."""
        self.env.close()
        self._seal.close()
        os.close(self._lock)

    # ---- which memory this is

    def incarnation(self) -> str:
        """Returns the name that tells this directory from any other one of the same node."""
        return self._identity.incarnation

    def legacy(self) -> bool:
        """Returns whether the directory is older than its incarnation: others may not know that one yet."""
        return self._identity.legacy

    def keep(self) -> None:
        """Keeps its identity in a copied directory. Raises `StorageFailed`."""
        self._identify(msgspec.structs.replace(self._identity, file=_file_of(self.env)))

    def renew(self, incarnation: str) -> None:
        """Becomes a new incarnation with the same log, unknown to the others. Raises `StorageFailed`."""
        self._identify(MemoryIdentity(incarnation=incarnation, file=_file_of(self.env)))

    def _identify(self, identity: MemoryIdentity) -> None:
        with _failures(self.env.path(), StorageFailed), self.env.begin(write=True) as txn:
            lmdb_records.put_identity(txn, identity)
            lmdb_records.number(txn)
        self._write_seal(self._held)
        self._identity, self.copied = identity, False

    # ---- reads by the core

    def hard_state(self) -> HardState:
        """Returns term, vote and commit index."""
        return self._unwritten or self._held.hard

    def snapshot(self) -> Snapshot:
        """Returns the newest snapshot. Raises `StorageDamaged`."""
        with self._reading() as txn:
            return lmdb_records.read_snapshot(txn)

    def first_index(self) -> Index:
        """Returns the least index that is held, or would be."""
        return self._held.base_index + 1

    def last_index(self) -> Index:
        """Returns the greatest index that is held."""
        return self._held.last_index

    def term(self, index: Index) -> Term:
        """Returns the term of an entry. Raises `Compacted`, `StorageDamaged`."""
        held = self._held
        if index == held.last_index:
            return held.last_term
        if index == held.base_index:
            return held.base_term
        return self.entries(index, index + 1, 1)[0].term

    def entries(self, low: Index, high: Index, bytes_max: int) -> Sequence[Entry]:
        """Returns entries from `low` to before `high`. Raises `Compacted`, `StorageDamaged`."""
        held = self._held
        if not held.base_index < low < high <= held.last_index + 1:
            raise Compacted(f"entries {low} to {high} are not held")
        found: list[Entry] = []
        with self._reading() as txn:
            for entry in lmdb_records.read_entries(txn, low, high):
                bytes_max -= entry_bytes(entry)
                if found and bytes_max < 0:
                    return found
                found.append(entry)
        if not found:  # compacted since we looked
            raise Compacted(f"entries {low} to {high} are not held any more")
        return found

    # ---- writes by the driver

    @property
    def removed(self) -> str | None:
        """Returns why writes would be lost now; None while the file that is open is in its place."""
        if is_in_place(self._file, self._opened):
            return None
        return (
            f"{self._file} was removed or replaced while it was open: nothing that is written now would be there after "
            "a restart. Put the directory back, and restart"
        )

    def save(self, ready: Ready) -> None:
        """Stores the state of a `Ready`, which is on disk when this returns.

        Raises `StorageFull`, `StorageFailed`: nothing of it is kept.
        """
        hard = ready.hard_state or self.hard_state()
        if not ready.must_sync:
            self._unwritten = hard
            return
        if self.removed is not None:
            raise StorageFailed(self.removed)
        with _failures(self.env.path(), StorageFailed), self.env.begin(write=True) as txn:
            held = lmdb_records.write(txn, self._held, ready, hard)
            lmdb_records.number(txn)
        self._write_seal(held)
        self._held, self._unwritten = held, None

    def _write_seal(self, held: StoredSummary) -> None:
        self._seal.write(self.env.info()["last_txnid"], held)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[lmdb.Transaction]:
        with _failures(self.env.path(), StorageDamaged), self.env.begin() as txn:
            yield txn


def new_incarnation() -> str:
    """Returns an incarnation that no other memory has."""
    return secrets.token_hex(INCARNATION_BYTES)


def _file_of(env: lmdb.Environment) -> FileMark:
    return mark_of(Path(env.path()) / "data.mdb")


def _identity(env: lmdb.Environment) -> MemoryIdentity:
    """Returns the memory's identity; gives one to a directory of an older version."""
    with env.begin() as txn:
        found = lmdb_records.read_identity(txn)
    if found is None:
        found = MemoryIdentity(incarnation=new_incarnation(), legacy=True, file=_file_of(env))
        with env.begin(write=True) as txn:
            lmdb_records.put_identity(txn, found)
            lmdb_records.number(txn)
    return found


@contextlib.contextmanager
def _failures(path: Path | str, kind: type[StorageFailed]) -> Iterator[None]:
    """Raises our errors for those of LMDB and of its records' decoding."""
    try:
        yield
    except StorageDamaged as error:
        raise StorageDamaged(f"{error}. {ADVICE}") from error
    except (lmdb.Error, msgspec.MsgspecError) as error:
        if isinstance(error, lmdb.Error) and is_for_want_of_room(error, Path(path)):
            # The transaction was given up before anything of it counted.
            raise StorageFull(f"{path}: no space left on the device ({error})") from error
        advice = f". {ADVICE}" if kind is StorageDamaged else ""
        raise kind(f"{path}: {error}{advice}") from error


def _lock(directory: Path) -> int:
    """Takes the directory's lock, which the kernel drops with its process. Raises `StorageFailed`."""
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise StorageFailed(f"{directory} is in use by another process: stop it, or name another directory") from None
    return fd
