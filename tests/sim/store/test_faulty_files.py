"""The disk and the scheduler that the simulated histories stand on."""

import errno
import queue
import random
import threading
from pathlib import Path
from types import ModuleType

import pytest

from tests.sim.cooperative import PowerLoss, Scheduler
from tests.sim.store.faulty_files import Disk

HOME = Path("/home")
LOG = HOME / "log"


@pytest.fixture
def disk():
    disk = Disk(random.Random(1))
    disk.mount(HOME)
    return disk


def after_power_loss(seed, write):
    """Returns what is left of a file of three synced pages after `write` and a power failure."""
    disk = Disk(random.Random(seed))
    disk.mount(HOME)
    file = disk.open(LOG, create=True)
    file.pwritev([b"a" * 4096 * 3], 0)
    file.sync()
    disk.sync_directory(HOME)
    write(file)
    disk.lose_power()
    return disk.data(LOG)


def test_what_is_written_is_read_and_what_is_synced_is_kept(disk):
    file = disk.open(LOG, create=True)
    assert file.pwritev([b"one", memoryview(b"two")], 0) == 6
    assert file.pread(10, 2) == b"etwo"
    assert (file.size(), disk.data(LOG), disk.durable(LOG)) == (6, b"onetwo", b"")
    file.sync()
    assert disk.durable(LOG) == b""  # without its name nobody finds it
    disk.sync_directory(HOME)
    assert disk.durable(LOG) == b"onetwo"
    disk.lose_power()
    assert disk.names(HOME) == ["log"]
    assert disk.data(LOG) == b"onetwo"


def test_pages_that_are_not_synced_are_kept_dropped_or_torn_each_on_its_own():
    def write(file):
        file.pwritev([b"b" * 4096 * 3], 0)

    left = {after_power_loss(seed, write) for seed in range(300)}
    pages = {tuple(data[at : at + 4096] in {b"b" * 4096} for at in (0, 4096, 8192)) for data in left}
    assert pages == {(i, j, k) for i in (False, True) for j in (False, True) for k in (False, True)}
    torn = [data for data in left if 0 < data[:4096].count(b"b") < 4096]
    assert torn
    assert all(data[:4096].lstrip(b"b").strip(b"a") == b"" for data in torn)


def test_a_file_may_have_its_new_size_without_its_new_bytes():
    sizes = {len(after_power_loss(seed, lambda file: file.pwritev([b"b" * 4096], 3 * 4096))) for seed in range(100)}
    assert {3 * 4096, 4 * 4096} < sizes


def test_a_truncation_that_is_not_synced_may_be_undone():
    assert {len(after_power_loss(seed, lambda file: file.truncate(5))) for seed in range(50)} == {5, 3 * 4096}


def test_names_that_are_not_synced_may_be_lost():
    left = set()
    for seed in range(100):
        disk = Disk(random.Random(seed))
        disk.mount(HOME)
        disk.open(HOME / "old", create=True).sync()
        disk.sync_directory(HOME)
        disk.open(HOME / "new", create=True).sync()
        disk.rename(HOME / "new", HOME / "renamed")
        disk.unlink(HOME / "old")
        disk.lose_power()
        left.add(tuple(disk.names(HOME)))
    assert {(), ("old",), ("new", "old"), ("renamed",), ("old", "renamed")} <= left
    assert all(not {"new", "renamed"} <= set(names) for names in left)


def test_a_failed_sync_is_said_once_and_what_it_dropped_is_never_written(disk):
    file = disk.open(LOG, create=True)
    disk.sync_directory(HOME)
    lost = 0
    for _ in range(20):
        at = file.size()
        file.pwritev([b"page"], at)
        disk.fail("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            file.sync()
        file.sync()
        assert file.pread(4, at) == b"page"
        lost += disk.durable(LOG)[at : at + 4] != b"page"
    assert 0 < lost < 20


def test_a_full_disk_takes_what_fits(disk):
    file = disk.open(LOG, create=True)
    disk.room = 10
    assert disk.free_bytes(LOG) == 10
    assert file.pwritev([b"123456"], 0) == 6
    assert file.pwritev([b"123456"], 0) == 6  # in place
    assert file.pwritev([b"123456"], 6) == 4
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"1"], 10)
    file.truncate(4)
    assert file.pwritev([b"123456"], 4) == 6


def test_errors_come_when_they_were_armed(disk):
    file = disk.open(LOG, create=True)
    disk.fail("write", errno.EIO, after=1)
    file.pwritev([b"fine"], 0)
    with pytest.raises(OSError, match="Input/output"):
        file.pwritev([b"torn"], 4)
    assert b"finetorn".startswith(disk.data(LOG))
    file.pwritev([b"fine"], 4)
    assert disk.failures == 1
    with pytest.raises(FileExistsError):
        disk.open(LOG, create=True)
    with pytest.raises(FileNotFoundError):
        disk.open(HOME / "none")


def test_a_bit_is_flipped_and_flipped_back(disk):
    file = disk.open(LOG, create=True)
    file.pwritev([b"abc"], 0)
    file.sync()
    disk.flip(LOG, 1, 0)
    assert file.pread(3, 0) == b"acc"
    disk.flip(LOG, 1, 0)
    assert file.pread(3, 0) == b"abc"


# ---- threads


def threads(seed):
    """Runs three threads that tell each other what they do, and returns the order in which they did it."""
    sim = Scheduler(random.Random(seed))
    module = ModuleType("simulated")
    module.Thread, module.SimpleQueue, module.Lock = threading.Thread, queue.SimpleQueue, threading.Lock
    done = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "simulated", module)
        with sim.patched("simulated"):
            waiting, lock = module.SimpleQueue(), module.Lock()

            def work(name):
                for i in range(5):
                    with lock:
                        done.append((name, i))
                    waiting.put(name)

            workers = [module.Thread(target=work, args=(name,), name=name) for name in "abc"]
            for worker in workers:
                worker.start()
            for _ in range(15):
                waiting.get()
            for worker in workers:
                worker.join()
    assert module.Thread is threading.Thread
    assert not sim.errors
    return done


def test_threads_take_turns_as_the_seed_says():
    orders = {seed: threads(seed) for seed in range(10)}
    assert all(threads(seed) == order for seed, order in orders.items())
    assert len({tuple(order) for order in orders.values()}) > 5


def test_time_passes_when_all_wait():
    sim = Scheduler(random.Random(0))
    assert not sim.block(lambda: False, 1000)
    assert sim.now_s == 1000


def test_a_deadlock_is_noticed():
    sim = Scheduler(random.Random(0))
    with pytest.raises(PowerLoss):
        sim.block(lambda: False)
    assert "all wait" in str(sim.errors[0])


def test_threads_end_where_they_are_when_the_power_fails():
    sim = Scheduler(random.Random(0))
    ended = []

    def work():
        try:
            sim.block(lambda: False)
        finally:
            ended.append(sim.now_s)

    for name in "abc":
        sim.start(work, name)
    sim.block(lambda: False, 5)
    sim.cut_power()
    sim.unwind()
    assert ended == [5, 5, 5]
    assert not sim.errors
