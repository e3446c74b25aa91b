"""Seeded histories of whole clusters: the product's controllers, store nodes and proxies on machines that fail."""

import os

import pytest
from joint_history import JointHistory

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "150"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
LENGTHS_S = (1.0, 2.5, 4.5)
BLOCK = 10  # seeds in one test: small enough for its time limit, large enough not to flood the report


def play(seed: int, *, files: bool = False) -> JointHistory:
    try:
        history = JointHistory.of_any_kind(seed, files=files)
        history.play(history.chance.choice(LENGTHS_S))
    except BaseException as error:
        error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
        raise
    return history


@pytest.mark.timeout(600)
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
