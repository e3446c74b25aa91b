"""LMDB files that have lost their end, or whose pages are not what LMDB has written."""

import os
import random
import subprocess
import sys

import lmdb
import pytest

from store.disk import lmdb_file
from store.disk.lmdb_file import is_broken, is_cut_short, leads_astray


def fill(path, *, seed=1, transactions=60, sizes=(0, 10, 700, 3_000, 30_000)):
    """Writes many transactions over two trees, with values in pages of their own; returns how much of its last page
    the file lacks.
    """
    draw = random.Random(seed)
    with lmdb.open(str(path), map_size=1 << 28, max_dbs=2, sync=False) as env:
        dbs = [env.open_db(name) for name in (b"one", b"two")]
        for _ in range(transactions):
            with env.begin(write=True) as txn:
                for _ in range(100):
                    key = draw.randbytes(draw.randrange(1, 30))
                    txn.put(key, bytes(draw.choice(sizes)), db=draw.choice(dbs))
        return (env.info()["last_pgno"] + 1) * env.stat()["psize"] - (path / "data.mdb").stat().st_size


def walk(path):
    """Reads every entry in another process, and returns how that process ended."""
    code = """
import lmdb, sys
with lmdb.open(sys.argv[1], map_size=1 << 28, max_dbs=2) as env, env.begin() as txn:
    for name, _ in txn.cursor():
        for _ in txn.cursor(db=env.open_db(name, txn=txn)):
            pass
"""
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode


def test_what_is_no_file_of_lmdb_is_left_to_lmdb(tmp_path):
    path = tmp_path / "data.mdb"
    assert not is_cut_short(path)
    for data in (b"", b"x", bytes(8192), random.Random(1).randbytes(20_000)):
        path.write_bytes(data)
        assert not is_cut_short(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_found_out(tmp_path, part):
    fill(tmp_path)
    path = tmp_path / "data.mdb"
    assert not is_cut_short(path)
    os.truncate(path, int(path.stat().st_size * part))
    assert is_cut_short(path)
    assert walk(tmp_path) != 0


def test_a_file_that_lacks_only_what_is_not_in_use_is_whole(tmp_path):
    """A transaction that empties most of a tree gives pages back that it took at the end of the file."""
    path, lacks, draw = tmp_path / "data.mdb", 0, random.Random(1)
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as env:
        for _ in range(8):
            for i in range(300):
                with env.begin(write=True) as txn:
                    txn.put(i.to_bytes(8, "big"), bytes(draw.randrange(400)))
            with env.begin(write=True) as txn:
                txn.put(b"state", bytes(1_000 * draw.randrange(1, 60)))
                for key in [key for key, _ in txn.cursor() if key != b"state"]:
                    txn.delete(key)
            lacks = (env.info()["last_pgno"] + 1) * env.stat()["psize"] - path.stat().st_size
            assert not is_cut_short(path)
            if lacks > 0:
                break
    assert lacks > 0
    os.truncate(path, path.stat().st_size // 2)
    assert is_cut_short(path)


def test_the_pages_of_a_sound_file_fit_together(tmp_path):
    """Whatever its transactions did: one tree of many depths, values of many pages, pages that were given back."""
    path, draw = tmp_path / "data.mdb", random.Random(1)
    assert not is_broken(path)
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as env:
        assert not is_broken(path)
        for turn in range(120):
            with env.begin(write=True) as txn:
                for _ in range(draw.choice((1, 10, 200))):
                    key = draw.randrange(3_000).to_bytes(draw.choice((2, 8, 100)), "big")
                    if turn % 3 == 2 or not txn.put(key, bytes(draw.choice((0, 10, 700, 3_000, 30_000)))):
                        txn.delete(key)
            assert not is_broken(path), turn
        with env.begin(write=True) as txn:
            for key in [key for key, _ in txn.cursor()]:
                txn.delete(key)
        assert not is_broken(path)


def test_pages_that_do_not_fit_together_are_found_out(tmp_path):
    path, size = tmp_path / "data.mdb", 4096
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as env, env.begin(write=True) as txn:
        for n in range(500):
            txn.put(n.to_bytes(8, "big"), bytes(100))
        txn.put(b"big", bytes(30_000))
    sound = path.read_bytes()
    assert not is_broken(path)
    found = 0
    for place in range(2, len(sound) // size):
        for there in (bytes(size), sound[2 * size : 3 * size] if place > 2 else sound[3 * size : 4 * size]):
            path.write_bytes(sound[: place * size] + there + sound[(place + 1) * size :])
            found += is_broken(path)
    assert found >= 2 * (len(sound) // size - 2 - 7)  # a value's pages behind its first have no heads
    for cut in (1, size, len(sound) // 2):
        path.write_bytes(sound[:-cut])
        assert is_broken(path)


# ---- the pages above the leaves of named trees

NO_LIMIT_S = 600.0
USE = """
import os, random, sys
from pathlib import Path
import lmdb
from store.disk.lmdb_file import leads_astray

def use(directory):
    with lmdb.open(str(directory), map_size=1 << 28, max_dbs=4) as env:
        with env.begin() as txn:
            for name, _ in txn.cursor():
                for _, value in txn.cursor(db=env.open_db(name, txn=txn)):
                    bytes(value)
        for n in range(10):
            with env.begin(write=True) as txn:
                txn.put(b"new%d" % n, bytes(n * 700), db=env.open_db(b"one", txn=txn))

directory, pages, flips = Path(sys.argv[1]), list(map(int, sys.argv[2].split(","))), int(sys.argv[3])
draw = random.Random(3)
sound = (directory / "data.mdb").read_bytes()
for _ in range(flips):
    data = bytearray(sound)
    data[draw.choice(pages) * 4096 + draw.choice((draw.randrange(64), draw.randrange(4096)))] ^= 1 << draw.randrange(8)
    (directory / "data.mdb").write_bytes(data)
    if leads_astray(directory / "data.mdb", within_s=600):
        print("found")
        continue
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            use(directory)
        except lmdb.Error:
            pass
        os._exit(0)
    print("killed" if os.WIFSIGNALED(os.waitpid(child, 0)[1]) else "used")
"""


def kinds(path):
    """Returns the pages of a file by their kind: the branches, and the others without the first two."""
    data = path.read_bytes()
    branches = [n for n in range(2, len(data) // 4096) if data[n * 4096 + 10 : n * 4096 + 12] == b"\x01\x00"]
    return branches, [n for n in range(2, len(data) // 4096) if n not in branches]


def test_named_trees_that_lmdb_has_written_lead_nowhere_else(tmp_path):
    path, draw = tmp_path / "data.mdb", random.Random(2)
    assert not leads_astray(path, within_s=NO_LIMIT_S)
    with lmdb.open(str(tmp_path), map_size=1 << 28, max_dbs=4, sync=False) as env:
        dbs = [env.open_db(name) for name in (b"one", b"two", b"three")]
        for turn in range(120):
            with env.begin(write=True) as txn:
                for _ in range(draw.choice((1, 10, 300))):
                    key, db = draw.randrange(2_000).to_bytes(draw.choice((2, 8, 100)), "big"), draw.choice(dbs)
                    if turn % 3 == 2 or not txn.put(key, bytes(draw.choice((0, 10, 700, 3_000, 30_000))), db=db):
                        txn.delete(key, db=db)
            assert not leads_astray(path, within_s=NO_LIMIT_S), turn
        for db in dbs:
            with env.begin(write=True) as txn:
                txn.drop(db, delete=False)
            assert not leads_astray(path, within_s=NO_LIMIT_S)


def test_no_flipped_bit_of_a_branch_lets_lmdb_kill_the_process(tmp_path):
    fill(tmp_path, transactions=20, sizes=(0, 10, 700))
    branches, _ = kinds(tmp_path / "data.mdb")
    assert branches
    command = [sys.executable, "-c", USE, str(tmp_path), ",".join(map(str, branches)), "150"]
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    assert len(said) == 150
    assert set(said) == {"found", "used"}


def test_a_branch_whose_children_are_not_in_the_file_is_found_out(tmp_path):
    fill(tmp_path)
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    for n in kinds(path)[0]:
        at = n * 4096 + int.from_bytes(data[n * 4096 + 16 : n * 4096 + 18], "little")
        data[at + 2] ^= 0x40  # of a child's number: four million pages on
    path.write_bytes(data)
    assert leads_astray(path, within_s=NO_LIMIT_S)


def test_a_page_in_two_places_is_found_out_and_would_end_the_process(tmp_path):
    fill(tmp_path, transactions=20, sizes=(0, 10, 700))
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    for n in kinds(path)[0]:  # one child of each is another's root
        others = [other for other in kinds(path)[0] if other != n]
        at = n * 4096 + int.from_bytes(data[n * 4096 + 20 : n * 4096 + 22], "little")
        data[at : at + 4] = others[0].to_bytes(4, "little")
    path.write_bytes(data)
    assert leads_astray(path, within_s=NO_LIMIT_S)
    assert walk(tmp_path) < 0


def test_pages_are_read_no_longer_than_there_is_time(tmp_path, monkeypatch):
    with lmdb.open(str(tmp_path), map_size=1 << 30, max_dbs=2, sync=False) as env, env.begin(write=True) as txn:
        db = env.open_db(b"one", txn=txn)
        for n in range(12_000):
            txn.put(n.to_bytes(400, "big"), bytes(10), db=db)
    branches, leaves = kinds(tmp_path / "data.mdb")
    read, pread = [], os.pread
    monkeypatch.setattr(lmdb_file.os, "pread", lambda fd, size, at: read.append(at) or pread(fd, size, at))
    assert not leads_astray(tmp_path / "data.mdb", within_s=NO_LIMIT_S)
    assert len(branches) <= len(read) < 2 * len(branches) < len(leaves)
    read.clear()
    assert not leads_astray(tmp_path / "data.mdb", within_s=0)
    assert len(read) <= 2 * lmdb_file._LOOK < len(branches)
    with lmdb.open(str(tmp_path), max_dbs=2) as env:
        assert env.stat()["entries"] == 1
