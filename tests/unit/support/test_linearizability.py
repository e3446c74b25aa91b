"""The checker of concurrent histories, on histories that are known to be right or wrong, and against a naive twin."""

import itertools
import random

import pytest

from tests.support.histories.linearizability import UNKNOWN, KvModel, Operation, Register, check_history, linearizable


def op(called, returned, name, argument=None, result=None, *, key="k"):
    return Operation(key, name, argument, result, called, returned)


RIGHT = {
    "nothing": [],
    "a put is read": [op(0, 1, "put", b"a", 5), op(2, 3, "get", None, (b"a", 5))],
    "a read beside a put may come before it": [op(0, 9, "put", b"a", 5), op(2, 3, "get", None, None)],
    "a read beside a put may come after it": [op(0, 9, "put", b"a", 5), op(2, 3, "get", None, (b"a", 5))],
    "puts beside each other in the order of their revisions": [
        op(0, 9, "put", b"a", 6),
        op(1, 9, "put", b"b", 5),
        op(10, 11, "get", None, (b"a", 6)),
    ],
    "of two compare-and-sets one holds": [
        op(0, 9, "cas", (0, b"a"), 5),
        op(1, 8, "cas", (0, b"b"), ("conflict", 5)),
    ],
    "a put of unknown outcome that was done": [op(0, UNKNOWN, "put", b"a"), op(5, 6, "get", None, (b"a", 3))],
    "a put of unknown outcome that was not": [op(0, UNKNOWN, "put", b"a"), op(5, 6, "get", None, None)],
    "one that was done later": [
        op(0, UNKNOWN, "put", b"a"),
        op(5, 6, "get", None, None),
        op(7, 8, "get", None, (b"a", 3)),
    ],
    "a conflict tells the revision of a put that nobody saw return": [
        op(0, UNKNOWN, "put", b"a"),
        op(5, 6, "cas", (0, b"b"), ("conflict", 3)),
        op(7, 8, "cas", (3, b"c"), 4),
    ],
    "a delete of unknown outcome": [
        op(0, 1, "put", b"a", 5),
        op(2, UNKNOWN, "delete"),
        op(3, 4, "get", None, (b"a", 5)),
        op(5, 6, "get", None, None),
    ],
    "deleted and made again": [
        op(0, 1, "put", b"a", 5),
        op(2, 3, "delete", 5, True),
        op(4, 5, "delete", None, False),
        op(6, 7, "cas", (0, b"b"), 9),
    ],
}
WRONG = {
    "a value that nobody put": [op(0, 1, "get", None, (b"a", 5))],
    "a stale read": [
        op(0, 1, "put", b"a", 5),
        op(2, 3, "put", b"b", 6),
        op(4, 5, "get", None, (b"a", 5)),
    ],
    "a read that goes back": [
        op(0, 1, "put", b"a", 5),
        op(2, 9, "put", b"b", 6),
        op(3, 4, "get", None, (b"b", 6)),
        op(5, 6, "get", None, (b"a", 5)),
    ],
    "a lost update": [
        op(0, 1, "put", b"a", 5),
        op(2, 5, "cas", (5, b"b"), 6),
        op(3, 6, "cas", (5, b"c"), 7),
    ],
    "a lost put": [op(0, 1, "put", b"a", 5), op(2, 3, "get", None, None)],
    "the wrong revision": [op(0, 1, "put", b"a", 5), op(2, 3, "get", None, (b"a", 4))],
    "revisions that go back": [op(0, 1, "put", b"a", 5), op(2, 3, "put", b"b", 4)],
    "a conflict without reason": [op(0, 1, "put", b"a", 5), op(2, 3, "cas", (5, b"b"), ("conflict", 6))],
    "a conflict with what was expected": [op(0, 1, "put", b"a", 5), op(2, 3, "cas", (5, b"b"), ("conflict", 5))],
    "a key that was there twice": [
        op(0, 1, "put", b"a", 5),
        op(2, 5, "delete", None, True),
        op(3, 6, "delete", None, True),
    ],
    "what was deleted comes back": [
        op(0, 1, "put", b"a", 5),
        op(2, 3, "delete", None, True),
        op(4, 5, "get", None, (b"a", 5)),
    ],
    "a put of unknown outcome that was done and undone": [
        op(0, UNKNOWN, "put", b"a"),
        op(5, 6, "get", None, (b"a", 3)),
        op(7, 8, "get", None, None),
    ],
}


@pytest.mark.parametrize("history", RIGHT.values(), ids=RIGHT)
def test_what_is_linearizable(history):
    assert check_history(history) == []


@pytest.mark.parametrize("history", WRONG.values(), ids=WRONG)
def test_what_is_not(history):
    assert check_history(history) == ["k"]


def test_keys_are_checked_alone():
    wrong = [one._replace(key="bad") for one in WRONG["a stale read"]]
    assert check_history([*RIGHT["a put is read"], *wrong]) == ["bad"]


def naive(history):
    """Returns whether a history is linearizable: it tries every order of every choice of operations."""
    step = KvModel(history).step
    open_ended = [one for one in history if one.returned == UNKNOWN]
    closed = [one for one in history if one.returned != UNKNOWN]
    for count in range(len(open_ended) + 1):
        for some in itertools.combinations(open_ended, count):
            for order in itertools.permutations([*closed, *some]):
                if any(b.returned < a.called for a, b in itertools.combinations(order, 2)):
                    continue
                states = {Register()}
                for one in order:
                    states = {following for state in states for following in step(state, one)}
                if states:
                    return True
    return False


def simulated(chance, count, *, spread=3.0, unknown=0.2):
    """Returns a linearizable history of one key: each operation takes effect somewhere between its call and its
    return.
    """
    moments = sorted((chance.random() * 10, n) for n in range(count))
    value, revision, newest = None, 0, 0
    history = []
    for at, n in moments:
        called, returned = at - chance.random() * spread, at + chance.random() * spread
        name = chance.choice(["get", "put", "cas", "delete"])
        fresh = b"%d" % n
        argument, result = None, None
        if name == "get":
            result = None if value is None else (value, revision)
        elif name == "delete":
            argument = chance.choice([None, revision, revision + 1])
            if argument in {None, revision}:
                result, value, revision = value is not None, None, 0
            else:
                result = ("conflict", revision)
        else:
            expected = chance.choice([revision, revision, revision + 1])
            argument = fresh if name == "put" else (expected, fresh)
            if name == "put" or expected == revision:
                newest += chance.randint(1, 3)
                value, revision, result = fresh, newest, newest
            else:
                result = ("conflict", revision)
        if name != "get" and chance.random() < unknown:
            result, returned = None, UNKNOWN
        history.append(Operation("k", name, argument, result, called, returned))
    return history


@pytest.mark.parametrize("seed", range(60))
def test_against_every_order(seed):
    chance = random.Random(seed)
    history = simulated(chance, chance.randint(2, 6))
    assert linearizable(KvModel(history).step, Register(), history)
    spoiled = list(history)
    at = chance.randrange(len(spoiled))
    other = chance.choice(spoiled)
    spoiled[at] = spoiled[at]._replace(called=spoiled[at].called + 4, returned=spoiled[at].returned + 4)
    if spoiled[at].name == other.name and spoiled[at].returned != UNKNOWN:
        spoiled[at] = spoiled[at]._replace(result=other.result)
    assert linearizable(KvModel(spoiled).step, Register(), spoiled) == naive(spoiled)


@pytest.mark.slow
def test_long_histories_are_checked_quickly():
    """2,000 operations, eight at a time: each takes up to 8/2000 of the whole time."""
    chance = random.Random(2)
    history = simulated(chance, 2_000, spread=0.02, unknown=0.005)
    assert check_history(history) == []
    at = next(i for i, one in enumerate(history) if i > 1_000 and one.name == "get" and one.result)
    history[at] = history[at]._replace(result=(b"nobody", 1))
    assert check_history(history) == ["k"]
