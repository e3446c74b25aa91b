"""The eager start of coroutines that mostly have nothing to wait for: those that never wait need no task.

Such a coroutine runs up to its first wait outside of any task, so it must not ask for its task before that, as
`asyncio.timeout` and `asyncio.TaskGroup` do.
"""

from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class EagerStart(Generic[T]):
    """A coroutine that has run to its first wait, or to its end."""

    __slots__ = ("_value", "rest")

    def __init__(self, value: T | None, rest: Coroutine[Any, Any, T] | None) -> None:
        self._value = value
        self.rest = rest  # the rest of it, for a task to await; None: it has ended

    @property
    def value(self) -> T:
        """Returns the result of the coroutine, which has ended."""
        assert self.rest is None, "it has not ended"
        return self._value  # type: ignore[return-value]


def eager_start(work: Coroutine[Any, Any, T]) -> EagerStart[T]:
    """Runs a coroutine up to its first wait. Raises whatever the coroutine raises before that."""
    try:
        awaited = work.send(None)
    except StopIteration as end:
        return EagerStart(end.value, None)
    return EagerStart(None, _Remainder(work, awaited))


class _Remainder(Coroutine[Any, Any, T], Generator[Any, Any, T]):
    """The rest of a coroutine that has started: waits for the first thing that it awaits, then for all others."""

    __slots__ = ("_awaited", "_begun", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited
        self._begun = False

    def __await__(self) -> Generator[Any, Any, T]:
        return self

    def send(self, value: Any) -> Any:
        """Resumes the coroutine."""
        if self._begun:
            return self._work.send(value)
        self._begun = True
        return self._awaited

    def throw(self, *error: Any) -> Any:
        """Raises an error in the coroutine, which waits for the first thing no more."""
        self._begun = True
        return self._work.throw(*error)

    def close(self) -> None:
        """Closes the coroutine, which does not go on."""
        self._work.close()
