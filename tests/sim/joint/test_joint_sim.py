"""Seeded histories of whole clusters: the product's controllers, store nodes and proxies on machines that fail."""

import pytest

from tests.sim.joint.joint_history import BLOCK, FIRST_SEED, SEEDS, play


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_what_is_acknowledged_is_there_whatever_fails(first):
    failed: dict[int, Exception] = {}
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        try:
            play(seed)
        except Exception as error:  # noqa: BLE001 - all that fail are named
            failed[seed] = error
    if failed:
        error = next(iter(failed.values()))
        error.add_note(f"seeds that fail: {', '.join(map(str, failed))}")
        raise error
