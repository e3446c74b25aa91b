"""A disk that syncs far too slowly, by how far the log is written and on disk."""

from store.node.syncs import FORGET_MS, HANGS_MS, SLOW_COUNT, SLOW_MS, Syncs


class SlowDisk:
    """A disk and its clock."""

    def __init__(self):
        self.syncs = Syncs()
        self.now_ms = self.end = self.flushed = 0
        self.changes = []

    def sync(self, takes_ms):
        self.end += 10
        self.wait(takes_ms)
        self.flushed = self.end
        self.wait(100)

    def wait(self, ms):
        for _ in range(0, ms, 100):
            if self.syncs.look(self.end, self.flushed, self.now_ms):
                self.changes.append(self.syncs.slow)
            self.now_ms += 100


def test_a_disk_is_slow_after_some_slow_syncs_in_a_row():
    disk = SlowDisk()
    for _ in range(SLOW_COUNT - 1):
        disk.sync(SLOW_MS + 100)
    disk.sync(100)
    for _ in range(SLOW_COUNT - 1):
        disk.sync(SLOW_MS + 100)
    assert not disk.changes
    disk.sync(SLOW_MS + 100)
    assert disk.changes == [True]
    disk.sync(100)
    assert disk.changes == [True, False]


def test_a_sync_that_hangs_is_enough():
    disk = SlowDisk()
    disk.end = 10
    disk.wait(HANGS_MS)
    assert not disk.changes
    disk.wait(300)
    assert disk.changes == [True]
    assert disk.syncs.hangs
    disk.flushed = 10
    disk.wait(200)
    assert disk.changes == [True, False]
    assert not disk.syncs.hangs


def test_a_disk_that_nobody_writes_to_is_not_slow_for_ever():
    disk = SlowDisk()
    for _ in range(SLOW_COUNT):
        disk.sync(SLOW_MS + 100)
    disk.wait(FORGET_MS + 200)
    assert disk.changes == [True, False]
