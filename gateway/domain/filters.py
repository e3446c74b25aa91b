"""Address filters, and the trie that finds every filter an address matches.

A filter is levels joined by `/`. `+` stands for exactly one level, `#` for any number of levels, none included. MQTT
allows `#` only at the end; AMQP's topic patterns allow it anywhere, so the trie does too. A wildcard in the first
level does not match an address that begins with `$` (MQTT 5.0, 4.7.2).
"""

from typing import Generic, TypeVar

from gateway.domain.errors import Cause, Refusal

T = TypeVar("T")

ONE, MANY = "+", "#"
FILTER_LEVELS_COUNT_MAX = 128  # of a client's filter: bounds the nodes that it takes in a trie


def check_filter(pattern: str) -> str:
    """Returns the filter; raises `Refusal` (MALFORMED) unless it is a topic filter of MQTT 5.0, 4.7.1."""
    if not pattern or "\0" in pattern:
        raise Refusal(Cause.MALFORMED, "a filter is at least one character and holds no U+0000")
    levels = pattern.split("/")
    if len(levels) > FILTER_LEVELS_COUNT_MAX:
        raise Refusal(Cause.MALFORMED, f"the filter has more than {FILTER_LEVELS_COUNT_MAX} levels")
    for i, level in enumerate(levels):
        if level == MANY:
            if i != len(levels) - 1:
                raise Refusal(Cause.MALFORMED, f"{pattern!r}: '#' stands only at the end")
        elif level != ONE and (ONE in level or MANY in level):
            raise Refusal(Cause.MALFORMED, f"{pattern!r}: a wildcard fills its whole level")
    return pattern


def is_filter(pattern: str) -> bool:
    """Returns whether the text has a wildcard, which no address has."""
    return ONE in pattern or MANY in pattern


def first_level(pattern: str) -> str | None:
    """Returns the first level of a filter, or None when a wildcard stands there."""
    level = pattern.split("/", 1)[0]
    return None if level in {ONE, MANY} else level


def is_sys(pattern: str) -> bool:
    """Returns whether a filter asks for `$SYS` or below; a wildcard in the first level does not (MQTT 5.0, 4.7.2)."""
    return pattern.startswith("$SYS") and pattern[4:5] in {"", "/"}


def matches(pattern: str, address: str) -> bool:
    """Returns whether one filter matches one address."""
    trie: FilterTrie[None] = FilterTrie()
    trie.add(pattern, None)
    return bool(trie.match(address))


class _Node(Generic[T]):
    __slots__ = ("children", "stays", "values")

    def __init__(self, *, stays: bool) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.stays = stays  # reached by '#': any further level leads back here
        self.values: dict[T, None] = {}  # a set that keeps its order


class FilterTrie(Generic[T]):
    """Filters with values; `match` costs the depth of the address, not the number of filters."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(stays=False)
        self._size = 0
        self.version = 0  # grows with every change, so that a cache of matches knows when it is stale

    def __len__(self) -> int:
        return self._size

    def add(self, pattern: str, value: T) -> None:
        """Stores `value` under a filter; adding the same pair again changes nothing."""
        node = self._root
        for level in pattern.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node(stays=level == MANY)
            node = child
        if value not in node.values:
            node.values[value] = None
            self._size += 1
            self.version += 1

    def discard(self, pattern: str, value: T) -> None:
        """Removes `value` from a filter, and nodes that this leaves empty."""
        path: list[tuple[_Node[T], str]] = []
        node = self._root
        for level in pattern.split("/"):
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        if value not in node.values:
            return
        del node.values[value]
        self._size -= 1
        self.version += 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.values or child.children:
                break
            del parent.children[level]

    def match(self, address: str) -> list[T]:
        """Returns every value whose filter matches, each once, in the order of the walk."""
        levels = address.split("/")
        at: dict[int, _Node[T]] = {}
        if address.startswith("$"):
            child = self._root.children.get(levels[0])
            if child is not None:
                self._arrive(child, at)
            levels = levels[1:]
        else:
            self._arrive(self._root, at)
        for level in levels:
            following: dict[int, _Node[T]] = {}
            for node in at.values():
                if node.stays:
                    self._arrive(node, following)
                for name in (level, ONE):
                    child = node.children.get(name)
                    if child is not None:
                        self._arrive(child, following)
            at = following
        found: dict[T, None] = {}
        for node in at.values():
            found.update(node.values)
        return list(found)

    @staticmethod
    def _arrive(node: _Node[T], at: dict[int, _Node[T]]) -> None:
        """Adds a node, and the '#' nodes below it, which need no level."""
        while node is not None and id(node) not in at:
            at[id(node)] = node
            child = node.children.get(MANY)
            if child is None:
                break
            node = child
