"""The shape of a comparison: works that every contender does, and inputs that none should take."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to be done, `count` times in each call of a contender."""

    title: str
    count: int
    contenders: Mapping[str, Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Subject:
    """The comparison of one codec. A contender takes a malformed input when its reader returns without an exception."""

    works: list[Work]
    readers: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    malformed: Mapping[str, Any] = field(default_factory=dict)
    imports: Mapping[str, str] = field(default_factory=dict)  # by contender: the module to import for it
    says: Mapping[str, Callable[[], str]] = field(default_factory=dict)  # to be shown as it is
