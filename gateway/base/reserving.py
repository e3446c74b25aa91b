"""Counts of things that are being made, for limits that are checked before the store is asked and count behind it."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

K = TypeVar("K")


@contextmanager
def reserved(counts: Counter[K], key: K) -> Iterator[None]:
    """Counts one more of a key while the context lasts. Keys of which there are none take no memory."""
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
