"""Cutting the surplus of a replica's log, with the power failing before, in or after each operation on the disk."""

import errno
import random
from pathlib import Path

import pytest

from store.base.errors import TruncationRefused
from store.disk.small_file import read_small_file
from store.engine.identity import belong_to
from store.format.frame import origin_of
from store.log.log import CommitLog
from store.log.segment import segment_name, segment_start
from tests.sim.cooperative import PowerLoss
from tests.sim.store.faulty_files import Disk
from tests.support.store.store_kit import frame

HOME = Path("/home")
ORIGIN = origin_of(3)
SIZES = [150, 40, 150, 10, 150, 150, 0, 90, 200, 5]
SEEDS = range(6)


def open_log(disk):
    return CommitLog(disk, HOME / "log", segment_size_bytes=600, begin=ORIGIN)


def written(disk):
    """Writes a log in several segments; returns where its frames begin, and its end."""
    disk.mount(HOME)
    log = open_log(disk)
    assert list(log.recover(ORIGIN, replica=True)) == []
    starts = []
    for n, size in enumerate(SIZES):
        starts.append(log.place(frame((16, b"%d" % n * size)), epoch=1, stored_at_ms=n).start)
        log.flush()
    disk.sync_directory(HOME)
    assert len(log.segments) > 2
    return [*starts, log.end]


def recovered(disk):
    """Returns what a replica finds: the log, and where its frames begin."""
    log = open_log(disk)
    starts = [one.start for one in log.recover(ORIGIN, replica=True)]
    assert not log.corruptions
    return log, [*starts, log.end]


@pytest.mark.parametrize("cut", range(len(SIZES) + 1))
@pytest.mark.parametrize("kind", ["power", "kill", "error"])
def test_a_truncation_that_is_cut_short(cut, kind):
    n, finished = 0, False
    while not finished:
        for seed in SEEDS:
            disk = Disk(random.Random(seed))
            starts = written(disk)
            at, left = starts[cut], n
            ends = {at, starts[-1], *(segment_start(name) for name in disk.names(HOME / "log"))}
            log = open_log(disk)

            def fault(_operation):
                nonlocal left
                left -= 1
                if left < 0:
                    if kind == "error":
                        raise OSError(errno.EIO, "no")
                    raise PowerLoss

            disk.on_operation = fault
            try:
                log.truncate(at, starts[min(cut, 2)])
                finished = True
            except (OSError, PowerLoss):
                pass
            disk.on_operation = lambda _operation: None
            if kind == "power":
                disk.lose_power()
            log, found = recovered(disk)
            if finished:
                assert found == starts[: cut + 1]
            else:
                assert found == starts[: len(found)]
                assert at <= log.end
                assert log.end in ends
            # It is begun again, and other frames follow.
            log = open_log(disk)
            log.truncate(at, ORIGIN)
            list(log.recover(at, replica=True))
            placed = log.place(frame((17, b"other" * 30)), epoch=2, stored_at_ms=9)
            log.flush()
            if kind == "power":
                disk.lose_power()
            assert recovered(disk)[1] == [*starts[:cut], at, placed.end]
        n += 1
    assert n > 1 or cut in {0, len(SIZES)}


def test_where_no_frame_begins():
    disk = Disk(random.Random(0))
    starts = written(disk)
    for at in range(ORIGIN - 2, starts[-1] + 3):
        log = open_log(disk)
        if at in starts:
            assert log._is_boundary(at, ORIGIN) or at == ORIGIN
            continue
        with pytest.raises(TruncationRefused):
            log.truncate(at, ORIGIN)
        assert log.end == starts[-1]


def test_damage_in_front_does_not_hide_where_frames_begin():
    disk = Disk(random.Random(0))
    starts = written(disk)
    second = segment_start(disk.names(HOME / "log")[1])
    disk.flip(HOME / "log" / segment_name(second), 70, 1)  # in the body of its first frame
    log = open_log(disk)
    at = starts[starts.index(second) + 1]
    log.truncate(at, ORIGIN)
    assert log.end == at


def test_a_cut_log_equals_one_that_never_had_what_was_cut():
    found = []
    for detour in (False, True):
        disk = Disk(random.Random(1))
        written(disk)
        log = recovered(disk)[0]
        common = log.end
        if detour:
            for n in range(9):
                log.place(frame((16, b"lost%d" % n * 30)), epoch=1, stored_at_ms=n)
            log.flush()
            log = open_log(disk)
            log.truncate(common, ORIGIN)
            list(log.recover(common, replica=True))
        for n in range(6):
            log.place(frame((16, b"new%d" % n * 20)), epoch=2, stored_at_ms=n)
            log.flush()
        names = disk.names(HOME / "log")
        found.append((names, [disk.data(HOME / "log" / name) for name in names]))
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", ["power", "kill", "error"])
def test_a_directory_takes_its_group_in_one_step(kind):
    """Whenever it is cut short: there is no file, or the whole one, and the next start goes on."""
    n, unfinished = 0, True
    while unfinished:
        unfinished = False
        for seed in SEEDS:
            disk = Disk(random.Random(seed))
            disk.mount(HOME)
            left = n

            def fault(_operation):
                nonlocal left
                left -= 1
                if left < 0:
                    if kind == "error":
                        raise OSError(errno.EIO, "no")
                    raise PowerLoss

            disk.on_operation = fault
            disk.short_chance = 0.5
            try:
                belong_to(disk, HOME, 3)
                finished = True
            except (OSError, PowerLoss):
                finished, unfinished = False, True
            disk.on_operation = lambda _operation: None
            if kind == "power":
                disk.lose_power()
            assert not finished or "group" in disk.names(HOME)
            belong_to(disk, HOME, 3)
            assert read_small_file(disk, HOME / "group", dict) == {"group": 3, "log": ""}
        n += 1
    assert n > 3
