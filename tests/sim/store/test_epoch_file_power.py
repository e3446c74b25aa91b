"""A replica's list of epochs, when the power fails."""

import random
from pathlib import Path

from store.replication.epoch_file import EpochFile
from store.replication.epochs import EpochList
from tests.sim.store.faulty_files import Disk
from tests.support.store.replication_kit import Following, FrameLog, Leading


def test_that_all_epochs_were_cut_is_on_disk():
    """A list that has become empty is as much of a change as any other."""
    disk = Disk(random.Random(1))
    home = Path("/home")
    disk.mount(home)
    follower = Following(2, FrameLog().fill(1, 2), [(1, 0)])
    file = EpochFile(disk, home)
    file.save(*follower.saved)
    leading = Leading(2, FrameLog(), followers=[follower])
    leading.master.epochs = EpochList()  # a group that began anew; any epoch it has would be in the list again
    leading.connect(2)
    assert follower.log.frames == []
    file.save(*follower.saved)
    disk.lose_power()
    assert EpochFile(disk, home).load() == (EpochList(), 2)
