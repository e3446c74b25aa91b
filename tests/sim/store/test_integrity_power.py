"""The floor of a log on a disk that loses what was not synced."""

import random
from pathlib import Path

import pytest

from store.integrity.floor import Floor, read_floor
from tests.sim.store.faulty_files import Disk

HOME = Path("/data")


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_failure_the_floor_is_never_newer_than_what_was_synced(seed):
    disk = Disk(random.Random(seed))
    disk.mount(HOME)
    floor = Floor(disk, HOME / "floor")
    for n in range(1, 40):
        floor.raise_to(n * 100)
    disk.lose_power()
    assert read_floor(disk, HOME / "floor") in {n * 100 for n in range(40)}
    lowered = Floor(disk, HOME / "floor")
    lowered.raise_to(10_000)
    lowered.lower(50)
    disk.lose_power()
    assert read_floor(disk, HOME / "floor") <= 50
