"""Flips bytes of a Raft node's file, one by one, and opens it: for a process of its own, which LMDB may end."""

import sys
from pathlib import Path

from controller.raft import Entry, EntryKind, HardState, Membership, RaftMember, Ready, first_snapshot
from controller.raft.errors import StorageFailed
from controller.raft.lmdb_storage import LmdbStorage

FIRST = first_snapshot(Membership.of(RaftMember(id=1, address="here")), b"begin")
ENTRIES = 12


def opened(directory: Path) -> LmdbStorage:
    """Opens the storage. Raises `StorageFailed`."""
    return LmdbStorage.open(directory, 1, first=FIRST, incarnation="i", map_size_bytes=16 << 20)


def fill(directory: Path) -> None:
    """Writes some entries, terms and votes; a reader must never take an older one for the newest."""
    storage = opened(directory)
    for n in range(2, ENTRIES):
        entry = Entry(n, n, EntryKind.COMMAND, b"%d" % n * 30)
        hard = HardState(term=n, vote=n % 3, commit=n - 1)
        storage.save(Ready(entries=(entry,), hard_state=hard, must_sync=True))
    storage.close()


def told(storage: LmdbStorage) -> tuple[object, ...]:
    """Returns all that the storage says."""
    found = storage.entries(storage.first_index(), storage.last_index() + 1, 1 << 30)
    return storage.hard_state(), storage.snapshot(), found, storage.incarnation()


def try_flips(directory: Path, name: str, first: int, step: int, bit: int) -> None:
    """Prints each place before, and what it came to."""
    storage = opened(directory)
    true = told(storage)
    storage.close()
    files = {path: path.read_bytes() for path in (directory / "data.mdb", directory / "raft.seal")}
    hurt = directory / name
    for at in range(first, len(files[hurt]), step):
        print("at", at, flush=True)
        for path, data in files.items():
            path.write_bytes(data)
        data = bytearray(files[hurt])
        data[at] ^= 1 << bit
        hurt.write_bytes(data)
        try:
            storage = opened(directory)
        except (StorageFailed, OSError) as error:
            print("refused", flush=True)
            print(error, file=sys.stderr)
            continue
        try:
            print("right" if told(storage) == true else f"wrong {told(storage)[0]}", flush=True)
        except StorageFailed:
            print("refused", flush=True)
        storage.close()
    print("end", flush=True)


if __name__ == "__main__":
    command, where, *rest = sys.argv[1:]
    if command == "fill":
        fill(Path(where))
    else:
        try_flips(Path(where), rest[0], *map(int, rest[1:]))
