"""Coroutines that mostly have nothing to wait for: no task is made for those that indeed have not.

What is begun here runs up to its first wait outside of any task, so it must not ask for the task that it is in before
that: `asyncio.timeout` and `asyncio.TaskGroup` do.
"""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

__all__ = ["Begun", "begin"]

T = TypeVar("T")


class Begun(Generic[T]):
    """A coroutine that has been taken to its first wait, or to its end."""

    __slots__ = ("_value", "rest")

    def __init__(self, value: T | None, rest: Coroutine[Any, Any, T] | None) -> None:
        self._value = value
        self.rest = rest  # what there is left to do, for a task to await; None: it has ended

    @property
    def value(self) -> T:
        """Returns the result of the coroutine, which has ended."""
        assert self.rest is None, "it has not ended"
        return self._value  # type: ignore[return-value]


def begin(work: Coroutine[Any, Any, T]) -> Begun[T]:
    """Begin a coroutine; what it raises before its first wait is raised here."""
    try:
        awaited = work.send(None)
    except StopIteration as end:
        return Begun(end.value, None)
    return Begun(None, _Rest(work, awaited))


class _Rest(Coroutine[Any, Any, T], Generator[Any, Any, T]):
    """The rest of a begun coroutine: waits for what it awaits first, then for all that follows."""

    __slots__ = ("_awaited", "_begun", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited
        self._begun = False

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        """Wait on."""
        if self._begun:
            return self._work.send(value)
        self._begun = True
        return self._awaited

    def throw(self, *error: Any) -> Any:
        """Wait no more."""
        return self._work.throw(*error)

    def close(self) -> None:
        """It will not go on."""
        self._work.close()
