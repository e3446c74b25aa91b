"""Seeded histories of a store whose disk fails and whose power does, against a model in plain dictionaries."""

import os
import random
import tempfile
from pathlib import Path

import pytest

from tests.sim.store.store_history import StoreHistory

SEEDS = int(os.environ.get("HEADGATE_SIM_SEEDS", "50"))
FIRST_SEED = int(os.environ.get("HEADGATE_SIM_FIRST", "0"))
BLOCK = 20  # seeds in one test: small enough for its time limit, large enough not to flood the report
MEMORY = Path("/dev/shm")  # LMDB syncs every transaction, and here it is not LMDB that is tested


def play(seed: int, directory: Path | None = None) -> StoreHistory:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else directory) as name:
        history = StoreHistory(seed, Path(name))
        try:
            history.run(random.Random(seed).choice([30, 100, 100, 200]))
        except BaseException as error:
            error.add_note(f"HEADGATE_SIM_FIRST={seed} HEADGATE_SIM_SEEDS=1 repeats this history")
            raise
    return history


@pytest.mark.parametrize("first", range(FIRST_SEED, FIRST_SEED + SEEDS, BLOCK))
def test_a_store_is_its_model_whatever_fails(first, tmp_path):
    for seed in range(first, min(first + BLOCK, FIRST_SEED + SEEDS)):
        play(seed, tmp_path)
