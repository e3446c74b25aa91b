"""Decides whether a concurrent history is linearizable: Wing and Gong's search, with Lowe's memory of what failed.

An operation takes effect at one moment between its call and its return; one whose outcome its caller never learned
takes effect at some moment after its call, or not at all. A history is linearizable if moments can be found so that
every result is what the model gives in that order (Herlihy and Wing 1990; Wing and Gong 1993; Lowe 2017). Keys are
independent of each other, so each is checked alone (Herlihy and Wing, theorem 1).
"""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

UNKNOWN = math.inf  # `returned` of an operation whose outcome its caller never learned


class Operation(NamedTuple):
    """`name` with `argument` came to `result`, between two moments."""

    key: str
    name: str
    argument: Any
    result: Any
    called: float
    returned: float


Step = Callable[[Hashable, Operation], Iterable[Hashable]]


def linearizable(step: Step, initial: Hashable, history: Sequence[Operation]) -> bool:
    """Returns whether there is an order. `step` gives an operation's next states, none where its result cannot be."""
    operations = sorted(history, key=lambda one: one.called)
    known = sum(1 << i for i, one in enumerate(operations) if one.returned != UNKNOWN)
    stack: list[tuple[int, Hashable]] = [(0, initial)]
    seen = {stack[0]}
    while stack:
        done, state = stack.pop()
        if done & known == known:
            return True
        for i in sorted(_next(operations, done), key=lambda i: -operations[i].returned):
            for following in step(state, operations[i]):
                reached = (done | 1 << i, following)
                if reached not in seen:
                    seen.add(reached)
                    stack.append(reached)
    return False


def _next(operations: Sequence[Operation], done: int) -> list[int]:
    """Returns the operations that may take effect next: they were called before any other pending one returned."""
    found: list[int] = []
    earliest = UNKNOWN
    for i in range((~done & (done + 1)).bit_length() - 1, len(operations)):
        if done >> i & 1:
            continue
        if operations[i].called > earliest:
            break
        found.append(i)
        earliest = min(earliest, operations[i].returned)
    return found


# ---- one key with revisions


class Register(NamedTuple):
    """The value of a key, and the newest revision that any change of it is known to have had."""

    value: bytes | None = None
    revision: int | None = 0  # 0: not there; None: there, by a put whose revision nobody was told
    newest: int = 0


class KvModel:
    """`step` for one key. Operations, and their results:

        get     None                 None or (value, revision)
        put     value                revision
        cas     (expected, value)    revision, or ("conflict", actual)
        delete  expected or None     whether it was there, or ("conflict", actual)

    Every value is put once, so that a revision read with it tells that of a put whose caller never learned it.
    """

    def __init__(self, history: Iterable[Operation]) -> None:
        self._revisions: dict[bytes, int] = {}
        for one in history:
            if one.name == "get" and one.result is not None:
                self._revisions[one.result[0]] = one.result[1]

    def step(self, state: Hashable, one: Operation) -> Iterable[Hashable]:
        """Returns the states that may follow."""
        assert isinstance(state, Register)
        return getattr(self, f"_{one.name}")(state, one)

    def _get(self, state: Register, one: Operation) -> Iterable[Register]:
        if one.returned == UNKNOWN:
            return [state]
        if one.result is None:
            return [state] if state.value is None else []
        value, revision = one.result
        if state.value != value or state.revision not in {None, revision} or revision < state.newest:
            return []
        return [Register(value, revision, revision)]

    def _put(self, state: Register, one: Operation) -> Iterable[Register]:
        return self._stored(state, one.argument, one)

    def _cas(self, state: Register, one: Operation) -> Iterable[Register]:
        expected, value = one.argument
        if one.returned == UNKNOWN:
            done = self._stored(state, value, one) if state.revision in {None, expected} else []
            return [state, *done]
        if isinstance(one.result, tuple):
            return self._refused(state, expected, one.result[1])
        return self._stored(state, value, one) if state.revision in {None, expected} else []

    def _delete(self, state: Register, one: Operation) -> Iterable[Register]:
        expected = one.argument
        gone = Register(None, 0, state.newest)
        if one.returned == UNKNOWN:
            return [state, gone]
        if isinstance(one.result, tuple):
            return self._refused(state, expected, one.result[1])
        if expected is not None and state.revision not in {None, expected}:
            return []
        return [gone] if one.result == (state.value is not None) else []

    def _stored(self, state: Register, value: bytes, one: Operation) -> list[Register]:
        revision = self._revisions.get(value) if one.returned == UNKNOWN else one.result
        if revision is None:
            return [Register(value, None, state.newest)]
        return [Register(value, revision, revision)] if revision > state.newest else []

    def _refused(self, state: Register, expected: int, actual: int) -> list[Register]:
        if actual == expected:
            return []
        if state.revision is None:
            return [Register(state.value, actual, actual)] if actual > state.newest else []
        return [state] if state.revision == actual else []


def check_history(history: Sequence[Operation]) -> list[str]:
    """Returns the keys whose history is not linearizable."""
    keys: dict[str, list[Operation]] = {}
    for one in history:
        keys.setdefault(one.key, []).append(one)
    return [key for key, its in keys.items() if not linearizable(KvModel(its).step, Register(), its)]


class NotDone(Exception):
    """Raised when a request has had no effect and will have none, and this is known."""


class Recording:
    """A history in the making."""

    def __init__(self) -> None:
        self.history: list[Operation] = []

    @contextmanager
    def operation(self, key: str, name: str, argument: Any) -> Any:
        """Records what is done in it; `append` its result to what it gives, or leave the outcome unknown. Raise
        `NotDone` in it, and it was nothing."""
        results: list[Any] = []
        called = time.monotonic()
        without_effect = name == "get"
        try:
            yield results
        except NotDone:
            without_effect = True
            raise
        finally:
            returned = time.monotonic()
            if results:
                self.history.append(Operation(key, name, argument, results[0], called, returned))
            elif not without_effect:
                self.history.append(Operation(key, name, argument, None, called, UNKNOWN))
