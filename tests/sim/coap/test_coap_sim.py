"""Seeded histories of CoAP over UDP: a request is done once, and an observer ends with the last value."""

import os
from collections import Counter

import pytest

from tests.sim.coap.coap_history import CoapHistory

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "100"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
BLOCK = 20  # seeds in one test: small enough for its time limit, large enough not to flood the report


def play(seed: int) -> CoapHistory:
    history = CoapHistory(seed)
    try:
        history.run()
    except BaseException as error:
        error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
        raise
    return history


def test_these_histories_have_what_they_are_about() -> None:
    seen: Counter[str] = Counter()
    for seed in range(BLOCK):
        seen.update(play(seed).events())
    assert set(seen) == set(CoapHistory.EVENTS), seen


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_requests_are_done_once_and_observers_end_with_the_last_value(first: int) -> None:
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        play(seed)
