"""Relations of address filters: whether one of two covers the other, and the addresses that both match.

Filters are as `gateway.domain.filters` says, as the tuple of their levels. Those of access rules have `#` only at the
end; functions that also take a pattern of AMQP, with `#` anywhere, say so.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

Levels: TypeAlias = tuple[str, ...]

EVERYTHING: Final[Levels] = ()  # no filter: matches every address, those that begin with `$` too
ONE, MANY = "+", "#"
_WILD = frozenset({ONE, MANY})


def levels_of(pattern: str) -> Levels:
    """Returns a filter's levels."""
    return tuple(pattern.split("/"))


def matches(levels: Levels, address: Sequence[str]) -> bool:
    """Returns whether a filter matches an address, given by its levels."""
    if not levels:
        return True
    if levels[0] in _WILD and address[0].startswith("$"):
        return False
    count = len(address)
    for i, level in enumerate(levels):
        if level == MANY:
            return True
        if i == count or level not in (ONE, address[i]):
            return False
    return len(levels) == count


def meet(one: Levels, other: Levels) -> Levels | None:
    """Returns the filter of the addresses that both match; None where there are none. `#` ends both."""
    if _hidden(one, other):
        return None
    common: list[str] = []
    for i in range(max(len(one), len(other)) + 1):
        a, b = one[i : i + 1], other[i : i + 1]
        if a == (MANY,):
            return (*common, *other[i:])
        if b == (MANY,):
            return (*common, *one[i:])
        if not a or not b:
            return tuple(common) if a == b else None
        if a != b and ONE not in (*a, *b):
            return None
        common += b if a == (ONE,) else a
    raise AssertionError("one of them ends before")


def covers(wide: Levels, narrow: Levels) -> bool:
    """Returns whether `wide` certainly matches all that `narrow` matches, which may have `#` anywhere.

    `+/#` is not recognised as all that `#` is.
    """
    if not wide:
        return True
    if not narrow or (wide[0] in _WILD and narrow[0].startswith("$")):
        return False
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:  # all these pairs of rests have to be covered
        i, j = todo.pop()
        if wide[i : i + 1] == (MANY,):
            continue
        if j == len(narrow):
            if i < len(wide):
                return False
            continue
        if i == len(wide):
            return False
        if narrow[j] == MANY:
            if wide[i] != ONE:
                return False
            following = [(i, j + 1), (i + 1, j)]
        elif wide[i] in (ONE, narrow[j]):
            following = [(i + 1, j + 1)]
        else:
            return False
        todo += [one for one in following if one not in seen]
        seen.update(following)
    return True


def touches(one: Levels, other: Levels) -> bool:
    """Returns whether there may be an address that both match. `#` may stand anywhere in them."""
    if not one or not other:
        return True
    if _hidden(one, other):
        return False
    todo, seen = [(0, 0)], {(0, 0)}
    while todo:
        i, j = todo.pop()
        if i == len(one) and j == len(other):
            return True
        following = [step for step in _steps(one, other, i, j) if step not in seen]
        todo += following
        seen.update(following)
    return False


def _steps(one: Levels, other: Levels, i: int, j: int) -> Iterator[tuple[int, int]]:
    """Yields the states of two filters after one more level of an address, or after a `#` that has no more levels."""
    a = one[i] if i < len(one) else None
    b = other[j] if j < len(other) else None
    if a == MANY:
        yield i + 1, j
    if b == MANY:
        yield i, j + 1
    if a is not None and b is not None and (a in _WILD or b in _WILD or a == b):
        yield i + (a != MANY), j + (b != MANY)


def _hidden(one: Levels, other: Levels) -> bool:
    """Returns whether one begins with a wildcard, which does not match the `$` that the other begins with."""
    return (one[0] in _WILD and other[0].startswith("$")) or (other[0] in _WILD and one[0].startswith("$"))
