"""A replica's list of epochs, when the power or its disk fails."""

import errno
import itertools
import random
from pathlib import Path

import pytest

from store.replication.epoch_file import EPOCH_FILES, EpochFile
from store.replication.epochs import EpochList
from tests.sim.store.faulty_files import Disk
from tests.support.store.replication_kit import Following, FrameLog, Leading

HOME = Path("/home")


def test_that_all_epochs_were_cut_is_on_disk():
    """A list that has become empty is as much of a change as any other."""
    disk = Disk(random.Random(1))
    disk.mount(HOME)
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)])
    file = EpochFile(disk, HOME)
    file.save(*follower.saved)
    leading = Leading(2, FrameLog(), followers=[follower])
    leading.master.epochs = EpochList()  # a group that began anew; any epoch it has would be in the list again
    leading.connect(2)
    assert follower.log.frames == []
    file.save(*follower.saved)
    disk.lose_power()
    assert EpochFile(disk, HOME).load() == (EpochList(), 2)


BEFORE, AFTER = (EpochList.of([(1, 0)]), 1), (EpochList.of([(1, 0), (9, 5)]), 9)
STEPS = [*itertools.product(["open", "write", "sync", "rename", "sync_directory"], range(2))]


@pytest.fixture
def disk():
    made = Disk(random.Random(1))
    made.mount(HOME)
    EpochFile(made, HOME).save(*BEFORE)
    return made


@pytest.mark.parametrize(("operation", "after"), STEPS)
def test_a_save_that_fails_leaves_one_list_or_the_other_until_the_next_one(disk, operation, after):
    """The first of the two files may have been replaced by then."""
    file = EpochFile(disk, HOME)
    assert file.load() == BEFORE
    disk.fail(operation, errno.ENOSPC, after=after)
    with pytest.raises(OSError, match="space"):
        file.save(*AFTER)
    assert EpochFile(disk, HOME).load() in [BEFORE, AFTER]
    file.save(*BEFORE)
    assert EpochFile(disk, HOME).load() == BEFORE


@pytest.mark.parametrize(("operation", "after"), STEPS)
@pytest.mark.parametrize("seed", range(5))
def test_a_power_failure_at_any_step_leaves_one_list_or_the_other(disk, operation, after, seed):
    file = EpochFile(disk, HOME)
    assert file.load() == BEFORE
    disk.fail(operation, errno.EIO, after=after)
    with pytest.raises(OSError):  # noqa: PT011 - the disk's
        file.save(*AFTER)
    disk.chance.seed(seed)
    disk.lose_power()
    again = EpochFile(disk, HOME)
    found = again.load()
    assert found in [BEFORE, AFTER]
    again.save(*found)
    disk.lose_power()
    assert EpochFile(disk, HOME).load() == found


def test_a_full_disk_leaves_the_earlier_list(disk):
    file = EpochFile(disk, HOME)
    assert file.load() == BEFORE
    disk.room = 60  # for one of the two files, and not for the other
    with pytest.raises(OSError, match="space"):
        file.save(*AFTER)
    assert EpochFile(disk, HOME).load() == BEFORE


@pytest.mark.parametrize("name", EPOCH_FILES)
def test_a_file_that_cannot_be_read_is_made_from_the_other(disk, name):
    file = EpochFile(disk, HOME)
    disk.fail("read", errno.EIO, after=EPOCH_FILES.index(name))
    assert (file.load(), file.whole) == (BEFORE, False)
    disk.fail("read", errno.ENOMEM)
    with pytest.raises(OSError, match="memory"):
        file.load()
