"""All strangers together are bounded, and whoever holds most makes way."""

import random

import pytest

from store.base.listening import PeerBudget
from tests.support.process.cancelled_task import CancelledTask


def test_the_largest_of_the_address_that_holds_most_makes_way():
    budget, mine, theirs = PeerBudget(100), CancelledTask(), [CancelledTask() for _ in range(4)]
    budget.hold(mine, b"me", 40)
    for size, task in zip((10, 30, 15, 20), theirs, strict=True):
        budget.hold(task, b"them", size)
    assert [task.cancelled for task in (mine, *theirs)] == [False, False, True, False, False]
    assert budget.held_bytes == 85
    budget.hold(mine, b"me", 60)
    assert mine.cancelled


def test_what_is_released_is_given_back_once():
    budget, task = PeerBudget(100), CancelledTask()
    budget.hold(task, b"", 50)
    for _ in range(2):
        budget.release(task, b"")
    assert budget.held_bytes == 0


def test_the_peak_is_the_most_since_it_was_restarted():
    budget, task = PeerBudget(100), CancelledTask()
    for size in (50, 80, 30):
        budget.hold(task, b"", size)
    assert (budget.peak_bytes, budget.held_bytes) == (80, 30)
    budget.restart_peak()
    budget.hold(task, b"", 40)
    budget.release(task, b"")
    assert budget.peak_bytes == 40


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_kept_of_whoever_has_left(seed):
    chance, budget, here = random.Random(seed), PeerBudget(1_000), {}
    for _ in range(500):
        if here and chance.random() < 0.4:
            task = chance.choice(list(here))
            budget.release(task, here.pop(task))
        else:
            task, origin = (
                chance.choice(list(here.items()))
                if here and chance.random() < 0.5
                else (CancelledTask(), b"%d" % chance.randrange(4))
            )
            here[task] = origin
            budget.hold(task, origin, chance.randrange(300))
        here = {task: origin for task, origin in here.items() if not task.cancelled}
        assert 0 <= budget.held_bytes <= 1_000
    for task, origin in here.items():
        budget.release(task, origin)
    assert (budget.held_bytes, budget._held, budget._totals) == (0, {}, {})
