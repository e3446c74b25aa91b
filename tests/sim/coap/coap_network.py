"""A network of datagrams in virtual time, which loses, repeats, delays and reorders them."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

from gateway.port.adapter import Peer

MAX_LATENCY_MS = 100_000  # a datagram takes no longer (RFC 7252, 4.8.2)
EVENTS_MAX = 1_000_000  # of one history: one that has more does not end


class Network:
    """The clock, the events to come, and the ends that datagrams are sent between.

    `heal` ends losses and repeats; datagrams that are under way by then still arrive.
    """

    def __init__(self, random: Random, *, start_ms: int) -> None:
        self.random = random
        self.now_ms = start_ms
        self.ends: dict[Peer, Callable[[bytes, Peer], None]] = {}
        self.loss = random.choice([0.0, 0.1, 0.3, 0.5])
        self.repeats = random.choice([0.0, 0.1, 0.3])
        self.late = random.choice([0.0, 0.05, 0.2])  # how many datagrams take seconds, up to MAX_LATENCY
        self.delay_ms = random.choice([2, 50, 1_000])  # of the others, at most
        self.cut_off: dict[Peer, int] = {}  # the ends that no datagram reaches or leaves, and until when
        self.lost = self.repeated = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Calls a function when a time has passed."""
        self._serial += 1
        assert self._serial < EVENTS_MAX, "the history does not end"
        heappush(self._events, (self.now_ms + delay_ms, self._serial, act))

    def run(self, until_ms: int) -> None:
        """Lets everything happen that is due by a time."""
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, act = heappop(self._events)
            act()
        self.now_ms = until_ms

    def send(self, data: bytes, source: Peer, destination: Peer) -> None:
        """Lets a datagram arrive once, several times, or never."""
        copies = 1
        if self.random.random() < self.loss or self._is_cut_off(source) or self._is_cut_off(destination):
            copies = 0
            self.lost += 1
        while copies and copies < 4 and self.random.random() < self.repeats:
            copies += 1
            self.repeated += 1
        for _ in range(copies):
            self.after(self._latency_ms(), lambda: self.ends[destination](data, source))

    def heal(self) -> None:
        """Ends all faults."""
        self.loss = self.repeats = self.late = 0.0
        self.delay_ms = min(self.delay_ms, 50)
        self.cut_off.clear()

    def _is_cut_off(self, end: Peer) -> bool:
        return self.cut_off.get(end, 0) > self.now_ms

    def _latency_ms(self) -> int:
        if self.random.random() < self.late:
            return self.random.choice([self.random.randrange(10_000), self.random.randrange(MAX_LATENCY_MS)])
        return self.random.randrange(self.delay_ms)
