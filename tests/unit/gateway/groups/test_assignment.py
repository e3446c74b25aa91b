"""Allocation of queues to members: examples."""

import pytest

from gateway.groups.assignment import STRATEGIES, averaged, consistent_hash


def test_averaged_gives_blocks_and_the_rest_to_the_first():
    assert averaged(range(16, 24), ["b", "a", "c"]) == {"a": (16, 17, 18), "b": (19, 20, 21), "c": (22, 23)}
    assert averaged([3, 1, 2], ["a"]) == {"a": (1, 2, 3)}
    assert averaged([1], ["b", "a"]) == {"a": (1,), "b": ()}


def test_consistent_hash_is_the_same_for_ever():
    """Proxies of two versions must agree: what is written here was so from the beginning."""
    assert consistent_hash(range(16, 24), ["a", "b", "c"]) == {
        "a": (20, 21),
        "b": (16, 17, 18, 19, 23),
        "c": (22,),
    }


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=list(STRATEGIES))
def test_nobody_and_nothing(strategy):
    assert strategy([1, 2], []) == {}
    assert strategy([], ["a", "b"]) == {"a": (), "b": ()}
