"""Consistent hashing: one target of several for each key, by weights, with few keys moved when targets come or go.

Rendezvous hashing (Thaler and Ravishankar 1998), with weights after Schindelhauer and Schomaker (2005): the score of a
target is -weight / ln u, where u is a hash of key and target in (0, 1); the highest has the key. Every process that
knows the same targets chooses the same one, and nothing has to be kept.
"""

import math
from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Final

from store.api.message import Message

_BITS: Final = 53  # of a fraction


class HashChoice:
    """The targets of one exchange. `key_of` gives the text of a message by which one of them is chosen."""

    __slots__ = ("_chosen", "_key_of", "_last", "_weights")

    def __init__(self, key_of: Callable[[Message], str]) -> None:
        self._key_of = key_of
        self._weights: dict[Hashable, tuple[int, bytes]] = {}  # by target: with the text that it is hashed by
        self._last: str | None = None  # the key asked for last: each target is asked for the same message
        self._chosen: Hashable = None

    def add(self, target: Hashable, text: str, weight: int) -> "HashTarget":
        """Adds a target, which `text` tells from all others in every process; returns its place in the choice."""
        assert weight > 0
        self._weights[target] = weight, text.encode("utf-8", "surrogatepass")
        self._last = None
        return HashTarget(self, target)

    def remove(self, target: Hashable) -> None:
        """Removes a target; its keys go to the others."""
        self._weights.pop(target, None)
        self._last = None

    def chosen(self, message: Message) -> Hashable:
        """Returns the target of a message."""
        key = self._key_of(message)
        if key != self._last:
            self._chosen, self._last = self.of_key(key), key
        return self._chosen

    def of_key(self, key: str) -> Hashable:
        """Returns the target of a key; None where there is none at all."""
        best, highest = None, 0.0
        raw = key.encode("utf-8", "surrogatepass")
        hashed = blake2b(len(raw).to_bytes(8, "big") + raw, digest_size=8)
        for target, (weight, text) in self._weights.items():
            mixed = hashed.copy()
            mixed.update(text)
            fraction = ((int.from_bytes(mixed.digest(), "little") >> (64 - _BITS)) + 0.5) / (1 << _BITS)
            score = -weight / math.log(fraction)
            if score > highest:
                best, highest = target, score
        return best


class HashTarget:
    """A binding's predicate: takes the messages whose hash chooses its target."""

    __slots__ = ("_choice", "_target")

    def __init__(self, choice: HashChoice, target: Hashable) -> None:
        self._choice = choice
        self._target = target

    def __call__(self, message: Message) -> bool:
        """Returns whether a message is for this target."""
        return self._choice.chosen(message) == self._target
