"""Seeded histories of Raft clusters: whatever fails, nothing that was agreed on changes, and then it goes on."""

import os
import random

import pytest
from raft_history import History

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
BLOCK = 20  # seeds in one test: small enough for its time limit, large enough not to flood the report


def play(seed):
    history = History(seed)
    try:
        history.run(random.Random(seed).choice([1000, 2000, 2000, 5000]))
    except BaseException as error:
        error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
        raise
    return history


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_what_is_agreed_on_stays_whatever_fails(first):
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        play(seed)
