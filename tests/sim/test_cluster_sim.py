"""Seeded histories of a store group whose machines, disks and network fail."""

import os

import pytest
from cluster_history import History

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
LENGTHS_MS = (1000, 3000, 6000)
BLOCK = 10  # seeds in one test: small enough for its time limit, large enough not to flood the report


def play(seed: int) -> History:
    try:
        history = History(seed)
        history.run(history.chance.choice(LENGTHS_MS))
    except BaseException as error:
        error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
        raise
    return history


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_what_is_acknowledged_is_there_whoever_becomes_master(first):
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        play(seed)
