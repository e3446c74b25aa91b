"""Seeded histories of consumer groups: never two owners of a queue, and every queue owned when it is quiet."""

import os

import pytest

from tests.sim.groups_world import GroupsWorld

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "10"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))


@pytest.mark.parametrize("strategy", ["averaged", "consistent_hash"])
def test_members_and_proxies_come_and_go(strategy):
    handed_over = died = 0
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        world = GroupsWorld(seed, strategy=strategy)
        try:
            world.run()
        except BaseException as error:
            error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
            raise
        finally:
            world.end()
        handed_over += world.handed_over
        died += world.proxies_died
    assert handed_over > 10 * SEEDS
    assert died > 0
