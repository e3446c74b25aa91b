"""Seeded histories of Raft clusters: whatever fails, nothing that was agreed on changes, and then it goes on."""

import os
import random

import pytest
from raft_history import History

from controller.raft import BadMessage

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


def test_by_their_ids_alone_nodes_that_forget_lose_what_was_committed():
    """The faults are real: where incarnations say nothing, histories with them break what is promised."""
    broken = []
    for seed in range(50):
        try:
            History(seed, incarnations=False).run(2000)
        except (AssertionError, BadMessage) as error:
            broken.append(str(error))
    assert any("lacks entry" in text or "votes twice" in text for text in broken)


@pytest.mark.timeout(600)
def test_memories_are_lost_and_replaced_in_these_histories():
    clusters = [play(seed).cluster for seed in range(FIRST_SEED, FIRST_SEED + BLOCK)]
    for what in ("forgotten", "rolled_back", "replaced"):
        assert sum(getattr(cluster, what) for cluster in clusters) > 0, what
