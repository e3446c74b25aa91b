"""The storage over LMDB: what was saved is there, whole or not at all, and damage is said."""

import random
import threading

import lmdb
import pytest

from controller.api.client import ControllerDamaged
from controller.raft import (
    Compacted,
    Compaction,
    Entry,
    EntryKind,
    HardState,
    Membership,
    MemoryStorage,
    Raft,
    RaftMember,
    RaftSettings,
    Ready,
    Role,
    Snapshot,
    StorageDamaged,
    StorageFailed,
    StorageFull,
    first_snapshot,
)
from controller.raft.lmdb_storage import LmdbStorage
from tests.support.cluster.small_disks import small_disk
from tests.support.controller.raft_rig import ELECTION_TICKS

FIRST = first_snapshot(Membership.of(RaftMember(id=1, address="here")), b"begin")


def opened(path, node_id=1, **more):
    return LmdbStorage.open(path / "raft", node_id, map_size_bytes=16 << 20, **more)


def entries(term, first, last, data=b"x"):
    return tuple(Entry(term, index, EntryKind.COMMAND, data) for index in range(first, last + 1))


def view(storage):
    first, last = storage.first_index(), storage.last_index()
    held = list(storage.entries(first, last + 1, 1 << 30)) if last >= first else []
    terms = [storage.term(index) for index in range(first - 1, last + 1)]
    return storage.hard_state(), storage.snapshot(), first, last, held, terms


def test_a_new_directory_begins_with_what_it_is_given(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    assert view(storage) == (HardState(term=1, commit=1), FIRST, 2, 1, [], [1])
    storage.close()
    storage = opened(tmp_path, first=first_snapshot(Membership(), b"another"))
    assert storage.snapshot() == FIRST
    storage.close()
    assert (tmp_path / "raft" / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_one_that_joins_begins_with_nothing(tmp_path):
    storage = opened(tmp_path)
    assert view(storage) == (HardState(), Snapshot(), 1, 0, [], [0])
    storage.close()


def test_it_holds_what_a_storage_in_memory_holds_before_and_after_opening_again(tmp_path):
    storage, twin = opened(tmp_path, first=FIRST), MemoryStorage(FIRST)
    rng = random.Random(7)
    term = 1
    for step in range(300):
        term += rng.random() < 0.2
        last = twin.last_index()
        first = rng.randrange(max(twin.first_index(), last - 3), last + 2)
        kept, snapshot, compaction = (), None, None
        kind = rng.random()
        if kind < 0.05:
            snapshot = Snapshot(index=last + 5, term=term, data=b"installed")
            first = last + 6
        elif kind < 0.2 and last > twin.snapshot().index:
            at = rng.randrange(twin.snapshot().index + 1, last + 1)
            compaction = Compaction(
                snapshot=Snapshot(index=at, term=twin.term(at), data=b"%d" % step),
                first_index=rng.randrange(twin.first_index(), at + 2),
            )
            first = max(first, at + 1)
        if rng.random() < 0.7:
            kept = entries(term, first, first + rng.randrange(5), b"%d" % step)
        elif first <= last:
            first = last + 1
        end = kept[-1].index if kept else (snapshot.index if snapshot else last)
        hard = HardState(term=term, vote=rng.randrange(3), commit=min(end, (snapshot or twin.snapshot()).index))
        ready = Ready(hard_state=hard, entries=kept, snapshot=snapshot, compaction=compaction, must_sync=True)
        for one in (storage, twin):
            one.save(ready)
        if rng.random() < 0.1:
            storage.close()
            storage = opened(tmp_path)
        assert view(storage) == view(twin)
    storage.close()


def test_what_need_not_be_synced_is_written_with_what_must(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    storage.save(Ready(entries=entries(2, 2, 5), hard_state=HardState(term=2, commit=1), must_sync=True))
    storage.save(Ready(hard_state=HardState(term=2, commit=5)))
    assert storage.hard_state().commit == 5
    storage.close()
    storage = opened(tmp_path)
    assert storage.hard_state().commit == 1
    storage.save(Ready(hard_state=HardState(term=2, commit=5)))
    storage.save(Ready(entries=entries(2, 6, 6), must_sync=True))
    storage.close()
    storage = opened(tmp_path)
    assert storage.hard_state().commit == 5
    storage.close()


def test_entries_are_bounded(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    storage.save(Ready(entries=entries(2, 2, 9, b"x" * 84), hard_state=HardState(term=2), must_sync=True))
    assert [len(storage.entries(2, 10, size)) for size in (1, 100, 199, 200, 9999)] == [1, 1, 1, 2, 8]
    for low, high in ((1, 2), (2, 11), (3, 3)):
        with pytest.raises(Compacted):
            storage.entries(low, high, 100)
    with pytest.raises(Compacted):
        storage.term(10)
    storage.close()


def test_a_node_comes_back_as_it_was(tmp_path):
    def start():
        storage = opened(tmp_path, first=FIRST)
        return storage, Raft(1, storage, settings=RaftSettings(election_ticks=ELECTION_TICKS), random=random.Random(1))

    def work():
        data = []
        while (ready := raft.ready()) is not None:
            storage.save(ready)
            data += [entry.data for entry in ready.committed if entry.kind is EntryKind.COMMAND]
            raft.advance(ready)
        return data

    storage, raft = start()
    for _ in range(2 * ELECTION_TICKS):
        raft.tick()
        work()
    for n in range(100):
        raft.propose(b"%d" % n)
    assert len(work()) == 100
    raft.compact(50, b"half", keep=10)
    work()
    storage.close()
    storage, raft = start()
    assert storage.snapshot().data == b"half"
    assert (storage.first_index(), storage.last_index()) == (41, 102)
    data = work()
    for _ in range(2 * ELECTION_TICKS):
        raft.tick()
        data += work()
    assert raft.status().role is Role.LEADER
    assert data == [b"%d" % n for n in range(48, 100)]
    storage.close()


@pytest.mark.slow
def test_reading_goes_on_in_another_thread(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    storage.save(Ready(entries=entries(2, 2, 50), hard_state=HardState(term=2), must_sync=True))
    failed = []

    def write():
        for n in range(51, 150):
            snapshot = Snapshot(index=n - 20, term=2, data=b"s")
            compaction = Compaction(snapshot=snapshot, first_index=n - 20)
            storage.save(Ready(entries=entries(2, n, n), compaction=compaction, must_sync=True))

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        try:
            low = storage.first_index()
            found = storage.entries(low, storage.last_index() + 1, 1 << 20)
            if [entry.index for entry in found] != list(range(low, low + len(found))):
                failed.append(found)
            storage.snapshot()
        except Compacted:
            pass
    thread.join()
    assert not failed
    storage.close()


def test_a_full_map_fails_and_keeps_what_there_was(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    before = view(storage)
    with pytest.raises(StorageFailed):
        storage.save(Ready(entries=entries(2, 2, 40, b"x" * (1 << 20)), hard_state=HardState(term=2), must_sync=True))
    assert view(storage) == before
    storage.save(Ready(entries=entries(2, 2, 3), hard_state=HardState(term=2), must_sync=True))
    storage.close()


# ---- whose it is, and what has happened to it


def test_a_directory_is_one_node_s_and_open_once(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    with pytest.raises(StorageFailed, match="in use"):
        opened(tmp_path)
    storage.close()
    with pytest.raises(StorageFailed, match="of controller 1, and this is controller 2"):
        opened(tmp_path, 2)
    opened(tmp_path).close()


def filled(tmp_path):
    storage = opened(tmp_path, first=FIRST)
    for n in range(20):
        ready = Ready(
            entries=entries(2, 2 + n * 10, 11 + n * 10, b"%d" % n * 100), hard_state=HardState(term=2), must_sync=True
        )
        storage.save(ready)
    storage.close()
    return tmp_path / "raft" / "data.mdb"


def change(tmp_path, key, make):
    """Imitates damage below LMDB: a record that is another, or is not there."""
    env = lmdb.open(str(tmp_path / "raft"), map_size=16 << 20)
    with env.begin(write=True) as txn:
        value = make(txn.get(key))
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)
    env.close()


def flip(value):
    return value[:-1] + bytes([value[-1] ^ 1])


@pytest.mark.parametrize("make", [flip, lambda value: None, lambda value: b"", lambda value: value[:3]])
@pytest.mark.parametrize(
    "key", [b"N", b"H", b"B", b"S", b"D", b"E" + (50).to_bytes(8, "big"), b"E" + (2).to_bytes(8, "big")]
)
def test_a_record_that_is_damaged_or_missing_is_said(tmp_path, key, make):
    filled(tmp_path)
    change(tmp_path, key, make)
    with pytest.raises(StorageDamaged):
        opened(tmp_path)
    with pytest.raises(ControllerDamaged):  # as the other storages of the controller say it
        opened(tmp_path)


def test_the_last_entry_missing_is_said_where_it_was_committed(tmp_path):
    filled(tmp_path)
    storage = opened(tmp_path)
    storage.save(Ready(hard_state=HardState(term=3, commit=201), must_sync=True))
    storage.close()
    change(tmp_path, b"E" + (201).to_bytes(8, "big"), lambda value: None)
    with pytest.raises(StorageDamaged, match="commit 201"):
        opened(tmp_path)


def test_a_record_of_another_key_is_no_record(tmp_path):
    filled(tmp_path)
    env = lmdb.open(str(tmp_path / "raft"), map_size=16 << 20)
    with env.begin(write=True) as txn:
        txn.put(b"E" + (50).to_bytes(8, "big"), txn.get(b"E" + (51).to_bytes(8, "big")))
    env.close()
    with pytest.raises(StorageDamaged):
        opened(tmp_path)


def test_a_file_that_has_lost_its_end_is_said(tmp_path):
    path = filled(tmp_path)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(StorageDamaged, match="lost its end"):
        opened(tmp_path)


def test_a_file_that_is_none_is_said(tmp_path):
    path = filled(tmp_path)
    path.write_bytes(b"something else" * 1000)
    with pytest.raises(StorageDamaged):
        opened(tmp_path)


def test_a_newer_version_is_left_alone(tmp_path):
    from controller.raft import lmdb_records

    filled(tmp_path)
    change(tmp_path, b"N", lambda value: lmdb_records._sealed(b"N", b"\x63" + value[5:])[1])
    with pytest.raises(StorageFailed, match="version 99"):
        opened(tmp_path)


def test_damage_found_while_reading_is_said(tmp_path):
    filled(tmp_path)
    storage = opened(tmp_path)
    with storage.env.begin(write=True) as txn:
        key = b"E" + (50).to_bytes(8, "big")
        txn.put(key, flip(txn.get(key)))
    with pytest.raises(StorageDamaged):
        storage.entries(45, 60, 1 << 20)
    storage.close()


def test_a_disk_without_room_is_full_and_has_not_failed(tmp_path):
    """LMDB says of a write that was cut short that the disk is faulty, and a controller ended where it may wait."""
    with small_disk(tmp_path) as disk:
        if disk is None:
            pytest.skip("no disk can be mounted here")
        storage = opened(tmp_path, first=FIRST)
        disk.fill(leave=100 << 10)
        large = Ready(entries=entries(1, 2, 9, bytes(1 << 18)), must_sync=True)
        with pytest.raises(StorageFull, match="no space left on the device"):
            storage.save(large)
        assert view(storage)[3] == 1
        disk.free()
        storage.save(large)
        storage.close()
        storage = opened(tmp_path)
        assert view(storage)[3] == 9
        storage.close()
