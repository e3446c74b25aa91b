from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import Refusal
from gateway.domain.filters import FilterTrie, check_filter, matches

LEVELS = st.sampled_from(["a", "b", "", "$s"])
ADDRESSES = st.lists(LEVELS, min_size=1, max_size=5).map("/".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "", "$s", "+", "#"]), min_size=1, max_size=5).map("/".join)


def naive(pattern: str, address: str) -> bool:
    """Returns whether a pattern matches an address, by the definition and by recursion."""
    p, a = tuple(pattern.split("/")), tuple(address.split("/"))
    if address.startswith("$") and p[0] in ("+", "#"):
        return False

    @cache
    def go(i: int, j: int) -> bool:
        if i == len(p):
            return j == len(a)
        if p[i] == "#":
            return go(i + 1, j) or (j < len(a) and go(i, j + 1))
        return j < len(a) and p[i] in ("+", a[j]) and go(i + 1, j + 1)

    return go(0, 0)


@given(PATTERNS, ADDRESSES)
def test_a_match_is_what_the_definition_says(pattern, address):
    assert matches(pattern, address) == naive(pattern, address)


@pytest.mark.slow
@given(st.lists(st.tuples(PATTERNS, st.integers(0, 3)), max_size=20), st.data())
def test_the_trie_holds_what_was_added_and_not_discarded(pairs, data):
    trie: FilterTrie[int] = FilterTrie()
    kept = {}
    for pattern, value in pairs:
        trie.add(pattern, value)
        kept[pattern, value] = None
    for pattern, value in data.draw(st.lists(st.sampled_from(pairs), max_size=10)) if pairs else []:
        trie.discard(pattern, value)
        kept.pop((pattern, value), None)
    assert len(trie) == len(kept)
    address = data.draw(ADDRESSES)
    assert sorted(trie.match(address)) == sorted({v for p, v in kept if naive(p, address)})


def test_an_empty_trie_keeps_no_nodes():
    trie: FilterTrie[int] = FilterTrie()
    trie.add("a/+/c/#", 1)
    trie.discard("a/+/c/#", 1)
    assert not trie._root.children


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "a/b#", "#a", "a\0"])
def test_what_is_no_filter_is_refused(pattern):
    with pytest.raises(Refusal):
        check_filter(pattern)


@pytest.mark.parametrize("pattern", ["#", "+", "a/+/b", "/", "a//b", "+/+", "/#", "$SYS/#"])
def test_filters(pattern):
    assert check_filter(pattern) == pattern


def filters(count: int) -> FilterTrie[int]:
    """Returns the filters of this many devices, a quarter of each kind."""
    trie: FilterTrie[int] = FilterTrie()
    kinds = ("site/{0}/dev{1}/temp", "site/{0}/dev{1}/+", "site/{0}/dev{1}/#", "site/+/dev{1}/temp")
    for number in range(count):
        trie.add(kinds[number % 4].format(number % 100, number), number)
    return trie


@pytest.mark.slow
def test_a_match_costs_no_more_among_many_filters(monkeypatch):
    """A match looks at as much among 100,000 filters as among 1,000."""
    steps = 0
    arrive = FilterTrie._arrive

    def counted(node, at):
        nonlocal steps
        steps += 1
        arrive(node, at)

    found = []
    for count in (1_000, 100_000):
        trie = filters(count)
        monkeypatch.setattr(FilterTrie, "_arrive", staticmethod(counted))
        steps = 0
        for number in range(400):
            assert trie.match(f"site/{number % 100}/dev{number}/temp") == [number]
        found.append(steps)
        monkeypatch.undo()
    assert found[0] == found[1]
