"""Decides which messages of a queue may be leased: no two of one key in flight, and none overtakes another."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heappop, heappush

from store.format.ranges import Range


class KeyOrder:
    """The messages of one queue whose keys are known: looked at once, and not settled yet.

    Of every key one message is out, or else the first one may be leased; the others are skipped until that one is
    settled. A message without a key (hash 0) blocks no other and is not kept here.
    """

    __slots__ = ("_key_of", "_of_key", "_out", "_ready", "_ready_heap")

    def __init__(self) -> None:
        self._of_key: dict[int, list[int]] = {}  # offsets of a key, ascending
        self._key_of: dict[int, int] = {}
        self._out: dict[int, int] = {}  # by key: the one that is leased, being settled, or kept back for a time
        self._ready: set[int] = set()  # the first one of each key that has none out
        self._ready_heap: list[int] = []  # holds all of them, and some that are not any more

    def __contains__(self, offset: int) -> bool:
        return offset in self._key_of

    @property
    def waiting(self) -> int:
        """Returns how many messages are neither leased, nor being settled, nor kept back for a time."""
        return len(self._key_of) - len(self._out)

    @property
    def passed_over(self) -> int:
        """Returns how many messages wait behind another one of their key."""
        return len(self._key_of) - len(self._out) - len(self._ready)

    def meet(self, offset: int, key: int) -> bool:
        """Notes a message that is looked at for the first time. Returns whether it is out; else it is skipped."""
        if key == 0:
            return True
        self._key_of[offset] = key
        offsets = self._of_key.setdefault(key, [])
        insort(offsets, offset)
        if len(offsets) == 1:
            self._out[key] = offset
            return True
        self._advance(key)
        return False

    def take(self, count: int) -> list[int]:
        """Takes the lowest messages that may be leased, at most `count`; they are out now."""
        taken: list[int] = []
        while len(taken) < count and self._ready_heap:
            offset = heappop(self._ready_heap)
            if offset in self._ready:
                self._ready.remove(offset)
                self._out[self._key_of[offset]] = offset
                taken.append(offset)
        return taken

    def come_back(self, offset: int) -> bool:
        """Notes that a message is not out any more and may be leased again. Returns whether it is kept here."""
        key = self._key_of.get(offset)
        if key is None:
            return False
        if self._out.get(key) == offset:
            del self._out[key]
        self._advance(key)
        return True

    def claim(self, offset: int) -> bool:
        """Takes one message out, if it is kept here. One that waits behind another is forgotten: it is done with."""
        key = self._key_of.get(offset)
        if key is None:
            return False
        if key not in self._out:
            self._ready.discard(self._of_key[key][0])
            self._out[key] = offset
        elif self._out[key] != offset:
            self.remove(offset)
        return True

    def remove(self, offset: int) -> bool:
        """Forgets a message; returns whether it was kept here. The next one of its key may be leased if it was out."""
        key = self._key_of.pop(offset, None)
        if key is None:
            return False
        offsets = self._of_key[key]
        del offsets[bisect_left(offsets, offset)]
        self._ready.discard(offset)
        if self._out.get(key) == offset:
            del self._out[key]
        if offsets:
            self._advance(key)
        else:
            del self._of_key[key]
        return True

    def remove_waiting(self) -> list[int]:
        """Forgets all that are not out, and returns them, ascending."""
        out = set(self._out.values())
        gone = sorted(offset for offset in self._key_of if offset not in out)
        for offset in reversed(gone):
            self.remove(offset)
        return gone

    def settle(self, ranges: Iterable[Range]) -> None:
        """Forgets settled messages."""
        for start, end in ranges:
            if end - start < len(self._key_of):
                for offset in range(start, end):
                    self.remove(offset)
            else:
                for offset in [offset for offset in self._key_of if start <= offset < end]:
                    self.remove(offset)

    def _advance(self, key: int) -> None:
        """Lets the first message of a key, and no other, be leased while none is out."""
        offsets = self._of_key[key]
        if key in self._out:
            return
        if len(offsets) > 1:
            self._ready.discard(offsets[1])
        first = offsets[0]
        if first not in self._ready:
            self._ready.add(first)
            heappush(self._ready_heap, first)
