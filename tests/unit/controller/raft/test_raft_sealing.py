"""A Raft node's state is never read as an older one: neither its term nor its vote, nor what it has acknowledged."""

import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from controller.raft import Entry, EntryKind, HardState, Ready, StorageDamaged
from tests.support.controller.raft_flips import fill, opened, told
from tests.support.controller.raft_probe import DIED, REFUSED, Probe, digest_of

KIT = Path(__file__).parents[3] / "support" / "controller" / "raft_flips.py"
ADVICE = "start it with an empty directory"


def vote(storage, term, candidate):
    storage.save(Ready(hard_state=HardState(term=term, vote=candidate, commit=10), must_sync=True))


def test_a_flipped_byte_of_an_entry_is_said_with_what_to_do(tmp_path):
    fill(tmp_path)
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.find(b"7" * 30)
    while at >= 0:  # every copy: pages of before are there too
        data[at + 3] ^= 4
        at = data.find(b"7" * 30, at + 1)
    path.write_bytes(data)
    with pytest.raises(StorageDamaged, match=ADVICE):
        opened(tmp_path)


def test_the_state_of_before_a_vote_is_no_state(tmp_path):
    """The newest meta page says that it is the older one: LMDB then shows the transaction before."""
    fill(tmp_path)
    storage = opened(tmp_path)
    vote(storage, 20, 1)
    vote(storage, 20, 2)
    newest = storage.env.info()["last_txnid"]
    storage.close()
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    at = 4096 * (newest & 1) + 16 + 24 + 96 + 8
    assert int.from_bytes(data[at : at + 8], "little") == newest
    data[at : at + 8] = (newest - 2).to_bytes(8, "little")
    path.write_bytes(data)
    with lmdb.open(str(tmp_path)) as env:
        assert env.info()["last_txnid"] == newest - 1
    with pytest.raises(StorageDamaged, match=ADVICE):
        opened(tmp_path)


def test_an_older_copy_of_the_database_beside_the_seal_is_said(tmp_path):
    fill(tmp_path)
    before = (tmp_path / "data.mdb").read_bytes()
    storage = opened(tmp_path)
    vote(storage, 30, 1)
    storage.close()
    (tmp_path / "data.mdb").write_bytes(before)
    with pytest.raises(StorageDamaged, match="older state"):
        opened(tmp_path)


def test_a_database_that_is_gone_beside_the_seal_is_said(tmp_path):
    fill(tmp_path)
    (tmp_path / "data.mdb").unlink()
    with pytest.raises(StorageDamaged, match="has lost its contents"):
        opened(tmp_path)


def test_a_seal_that_was_not_written_any_more_is_older_and_no_harm(tmp_path):
    """As after a power failure: the seal is not synced."""
    fill(tmp_path)
    seal = (tmp_path / "raft.seal").read_bytes()
    storage = opened(tmp_path)
    vote(storage, 40, 1)
    storage.save(Ready(entries=(Entry(40, 12, EntryKind.COMMAND, b"x"),), must_sync=True))
    said = told(storage)
    storage.close()
    (tmp_path / "raft.seal").write_bytes(seal)
    storage = opened(tmp_path)
    assert told(storage) == said
    storage.close()
    torn = seal[:512] + bytes(512)
    (tmp_path / "raft.seal").write_bytes(torn)
    opened(tmp_path).close()


def test_a_seal_of_which_nothing_is_left_is_said(tmp_path):
    fill(tmp_path)
    (tmp_path / "raft.seal").write_bytes(bytes(1024))
    with pytest.raises(StorageDamaged, match=ADVICE):
        opened(tmp_path)


def test_a_directory_of_an_older_version_is_sealed_when_it_is_opened(tmp_path):
    fill(tmp_path)
    (tmp_path / "raft.seal").unlink()
    with lmdb.open(str(tmp_path), map_size=16 << 20) as env, env.begin(write=True) as txn:
        assert txn.delete(b"T")
    storage = opened(tmp_path)
    said = told(storage)
    storage.close()
    assert (tmp_path / "raft.seal").stat().st_size == 1024
    storage = opened(tmp_path)
    assert told(storage) == said
    storage.close()


@pytest.mark.parametrize(("name", "step"), [("data.mdb", 89), ("raft.seal", 7)])
def test_whatever_byte_is_flipped_nothing_older_is_told(tmp_path, name, step):
    fill(tmp_path)
    size = (tmp_path / name).stat().st_size
    first, seen, died = 5, set(), 0
    while first < size:
        child = subprocess.run(
            [sys.executable, str(KIT), "flip", str(tmp_path), name, str(first), str(step), "1"],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        said = child.stdout.splitlines()
        assert said, child.stderr
        assert not [line for line in said if line.startswith("wrong")], said
        seen |= set(said)
        if said[-1] == "end":
            break
        assert child.returncode < 0, child.stderr
        died += 1
        first = int(said[-1].split()[1]) + step
    assert {"right", "refused"} <= seen or (name, "right" in seen) == ("raft.seal", True)  # which has two slots
    assert died < 10


PAGE_BYTES = 4096


def test_a_page_in_the_place_of_another_is_said_and_ends_no_process(tmp_path):
    """As after a write that was lost or went elsewhere; LMDB asserts what it finds in pages, and aborts."""
    path, entries = tmp_path / "data.mdb", 120
    storage = opened(tmp_path)
    for n in range(2, entries):
        entry = Entry(n, n, EntryKind.COMMAND, b"%d" % n * 30)
        storage.save(Ready(entries=(entry,), hard_state=HardState(term=n, vote=1, commit=n - 1), must_sync=True))
    true = digest_of(storage)
    storage.close()
    files = {one: one.read_bytes() for one in (path, tmp_path / "raft.seal")}
    pages = [files[path][at : at + PAGE_BYTES] for at in range(0, len(files[path]), PAGE_BYTES)]
    probe, found = Probe(), {}
    try:
        for place in range(len(pages)):
            for source in (None, place - 1, (place + 7) % len(pages), 2):
                for one, data in files.items():
                    one.write_bytes(data)
                hurt = bytearray(files[path])
                there = pages[source] if source is not None else bytes(PAGE_BYTES)
                hurt[place * PAGE_BYTES : (place + 1) * PAGE_BYTES] = there
                path.write_bytes(hurt)
                found[place, source] = probe.ask(tmp_path, 1)
    finally:
        probe.close()
    assert set(found.values()) <= {true, REFUSED}, [place for place, said in found.items() if said == DIED]
    assert REFUSED in found.values()
