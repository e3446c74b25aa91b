"""Filters of addresses, as levels: `+` stands for one level, `#` at the end for any number, none included."""

from collections.abc import Sequence


def matches(pattern: Sequence[str], levels: Sequence[str]) -> bool:
    """Returns whether a filter of these levels matches an address of those."""
    for n, wanted in enumerate(pattern):
        if wanted == "#":
            return True
        if n >= len(levels) or wanted not in ("+", levels[n]):
            return False
    return len(pattern) == len(levels)


def check_levels(pattern: str) -> list[str]:
    """Returns the levels of a filter. Raises ValueError for a text that is none."""
    levels = pattern.split("/")
    if not pattern or "#" in levels[:-1] or any(set("+#") & set(one) and len(one) > 1 for one in levels):
        raise ValueError(f"filter {pattern!r}: + and # stand for whole levels, # for the last")
    return levels
