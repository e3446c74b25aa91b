"""Virtual time, and a network that drops, repeats, delays and reorders, for many processes in one thread."""

import heapq
import itertools
import random
from collections.abc import Callable

__all__ = ["World"]

LINK_DELAYS_MS = ((1, 2), (1, 5), (1, 20))


class World:
    """What happens next, by virtual milliseconds. `after_each` is called after everything that happens."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0
        self.steps = 0
        self.after_each: Callable[[], None] = lambda: None
        self.doors: dict[object, Callable[[object, object], None]] = {}  # who takes messages: (from, message)
        self.resets: dict[object, Callable[[object], None]] = {}  # who hears that a peer is not there
        self.cut: set[tuple[object, object]] = set()  # one-way: (from, to)
        self.drop_chance = self.repeat_chance = self.reorder_chance = self.delay_chance = 0.0
        self.link_ms = chance.choice(LINK_DELAYS_MS)
        self._last: dict[tuple[object, object], int] = {}  # when the newest message of a link arrives
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now + max(delay_ms, 0), next(self._count), call))

    def run(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let things happen; whether `done` came true in time."""
        while self._queue and self._queue[0][0] <= until_ms:
            self.now, _, call = heapq.heappop(self._queue)
            call()
            self.steps += 1
            self.after_each()
            if done():
                return True
        self.now = max(self.now, until_ms)
        return done()

    def send(self, source: object, target: object, message: object, *, repeats: bool = True) -> None:
        """A message is on its way, or lost."""
        chance = self.chance
        if chance.random() < self.drop_chance:
            return
        self._carry(source, target, message)
        if repeats and chance.random() < self.repeat_chance:
            self._carry(source, target, message)

    def _carry(self, source: object, target: object, message: object) -> None:
        chance = self.chance
        arrives = self.now + chance.randint(*self.link_ms)
        if chance.random() < self.delay_chance:
            arrives += chance.choice([20, 100, 1500])
        link = (source, target)
        if chance.random() >= self.reorder_chance:
            arrives = max(arrives, self._last.get(link, 0))
            self._last[link] = arrives
        self.after(arrives - self.now, lambda: self._arrive(source, target, message))

    def _arrive(self, source: object, target: object, message: object) -> None:
        if (source, target) in self.cut:
            return
        door = self.doors.get(target)
        if door is not None:
            door(source, message)
        elif source in self.resets and (target, source) not in self.cut:
            self.after(1, lambda: self.resets[source](target) if source in self.resets else None)

    def heal(self) -> None:
        """From here on all messages arrive, once and soon. Late ones may still come."""
        self.cut.clear()
        self.drop_chance = self.repeat_chance = self.reorder_chance = self.delay_chance = 0.0
        self.link_ms = (1, 3)
