"""The form in which the state machine's tables apply commands: a method for each command, in one table.

A method checks a command, and changes nothing: it raises `ControllerError`, or returns the change, which is made by
calling it and returns the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

from controller.api.commands import Command

T = TypeVar("T")
Change: TypeAlias = Callable[[], T]
Plans: TypeAlias = Mapping[type[Command[Any]], Callable[[Any], Change[Any]]]


def no_change() -> None:
    """Changes nothing: the command was applied before, or its subject does not exist."""
