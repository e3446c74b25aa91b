"""The outbox of one subscription: which event is delivered when. No input, no output, no clock.

Events of one key are delivered one after the other, each after the one before it was; those of different keys do not
wait for each other. An event whose delivery fails is tried again after a pause that doubles, and holds up its key
alone. Several failures in a row that are not the event's own fault open the breaker: then there is one attempt after
each of its pauses, until one is successful.

    held -> in flight -> settled
             |  ^
             v  |
            waiting -> dead, until its dead letter is durable -> settled
"""

import heapq
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.domain.cursor import Cursor, cursor_of
from store.api.message import Message, encode
from store.base.streams import Backoff
from store.format.frame import Position, group_of

HELD_COUNT_MAX: Final = 1_024  # events of one subscription that have left the log and are not delivered
HELD_BYTES_MAX: Final = 4 << 20  # of these, properties included; a single event may be larger
BREAKER_FAILURES: Final = 5  # in a row, after which the breaker opens
BREAKER_MIN_S, BREAKER_MAX_S = 5.0, 300.0  # its pauses
RETRY_AFTER_MS_MAX: Final = 3_600_000  # that a sink may ask for


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a subscription's deliveries."""

    concurrency: int
    rate_per_s: float | None
    retry_min_s: float
    retry_max_s: float
    attempts_max: int | None  # None: forever, as there is no dead letter address


def held_size(message: Message) -> int:
    """Returns the bytes that count for a held event: its body, and all else of its record."""
    return len(message.body) + len(encode(msgspec.structs.replace(message, body=b"")))


class Attempt:
    """An event on its way to the sink."""

    __slots__ = (
        "_backoff",
        "attempts",
        "error",
        "key",
        "message",
        "not_before_ms",
        "number",
        "position",
        "settled",
        "size",
    )

    def __init__(
        self, number: int, position: Position, key: str, message: Message, *, size: int, backoff: Backoff
    ) -> None:
        self.number = number
        self.position = position
        self.key = key
        self.message = message
        self.size = size  # as `held_size` says
        self.attempts = 0  # that have begun
        self.error = ""  # of the last one
        self.not_before_ms = 0
        self.settled = False  # it is not held any more
        self._backoff = backoff

    def pause_ms(self) -> int:
        """Returns the pause before the next attempt."""
        return int(self._backoff.next_s() * 1_000)


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt: `of_event` where another event may well be taken, `final` where this one never will be.

    `gone`: the sink wants nothing more. `passed`: the event has been at the sink before, and is not sent.
    """

    error: str
    of_event: bool = False
    final: bool = False
    gone: bool = False
    passed: bool = False
    retry_after_ms: int | None = None


class Outbox:
    """The events of one subscription that have left the log and are not settled."""

    def __init__(self, policy: Policy, *, uniform: Callable[[float, float], float], now_ms: int) -> None:
        self._policy = policy
        self._uniform = uniform
        self._numbers = 0
        self._lanes: dict[str, deque[Attempt]] = {}  # by key; the first is in flight, ready or waiting
        self._ready: deque[Attempt] = deque()
        self._waiting: list[tuple[int, int, Attempt]] = []  # a heap, by time
        self._held: dict[int, dict[int, Attempt]] = {}  # by group and number: the oldest is the first
        self._hold_until_ms = 0  # asked for by the sink
        self._open_until_ms = 0  # the breaker's pause
        self._breaker = Backoff(BREAKER_MIN_S, BREAKER_MAX_S, uniform=uniform)
        self._failures = 0  # in a row
        self._trial: Attempt | None = None  # begun while the breaker was open
        self._tokens = self._burst
        self._tokens_ms = now_ms
        self.held_count = 0
        self.held_bytes = 0
        self.in_flight = 0
        self.broken = False  # the breaker is open, or one attempt is to show whether it may close
        self.rate_per_s = policy.rate_per_s  # the sink may allow less

    @property
    def full(self) -> bool:
        """Returns whether nothing more may be taken from the log."""
        return self.held_count >= HELD_COUNT_MAX or self.held_bytes >= HELD_BYTES_MAX

    @property
    def _burst(self) -> float:
        return max(1.0, self._policy.rate_per_s or 1.0)

    # ---- inputs

    def take(self, position: Position, key: str, message: Message, size: int) -> None:
        """Holds an event from the log, of a `held_size`; events come in the log's order."""
        self._numbers += 1
        policy = self._policy
        backoff = Backoff(policy.retry_min_s, policy.retry_max_s, uniform=self._uniform)
        one = Attempt(self._numbers, position, key, message, size=size, backoff=backoff)
        self._held.setdefault(group_of(position.frame), {})[one.number] = one
        self.held_count += 1
        self.held_bytes += one.size
        lane = self._lanes.get(key)
        if lane is None:
            self._lanes[key] = deque((one,))
            self._ready.append(one)
        else:
            lane.append(one)

    def start(self, now_ms: int) -> list[Attempt]:
        """Returns the attempts that begin now."""
        while self._waiting and self._waiting[0][0] <= now_ms:
            self._ready.append(heapq.heappop(self._waiting)[2])
        self._refill(now_ms)
        begun: list[Attempt] = []
        while self._ready and self._may_start(now_ms):
            one = self._ready.popleft()
            one.attempts += 1
            self.in_flight += 1
            if self.rate_per_s is not None:
                self._tokens -= 1
            if self.broken:
                self._trial = one
            begun.append(one)
        return begun

    def delivered(self, one: Attempt) -> None:
        """Notes that the sink has taken an event."""
        self.in_flight -= 1
        self._works()
        self._settle(one)

    def passed_over(self, one: Attempt) -> None:
        """Notes that an event that was to be attempted is not sent: its time is over, or the sink has had it."""
        self.in_flight -= 1
        if one is self._trial:
            self._trial = None
        self._settle(one)

    def failed(self, one: Attempt, failure: Failure, now_ms: int) -> bool:
        """Notes a failed attempt; returns whether the event is dead: `dead_lettered` is to follow."""
        self.in_flight -= 1
        one.error = failure.error
        if failure.retry_after_ms is not None:
            asked_ms = min(failure.retry_after_ms, RETRY_AFTER_MS_MAX)
            self._hold_until_ms = max(self._hold_until_ms, now_ms + asked_ms)
        if failure.of_event:
            self._works()
        else:
            self._failures += 1
            if one is self._trial or (not self.broken and self._failures >= BREAKER_FAILURES):
                self.broken, self._trial = True, None
                self._open_until_ms = now_ms + int(self._breaker.next_s() * 1_000)
        attempts_max = self._policy.attempts_max
        if attempts_max is not None and (failure.final or one.attempts >= attempts_max):
            return True
        self._wait(one, now_ms + one.pause_ms())
        return False

    def dead_lettered(self, one: Attempt) -> None:
        """Notes that the dead letter of an event is durable."""
        self._settle(one)

    def dead_letter_failed(self, one: Attempt, now_ms: int) -> None:
        """Notes that the dead letter of an event was not stored: the event is attempted again after a pause."""
        self._wait(one, now_ms + one.pause_ms())

    # ---- outputs

    def oldest(self) -> Cursor:
        """Returns the oldest event that is not settled, of each log that has one."""
        return cursor_of({group: next(iter(held.values())).position for group, held in self._held.items() if held})

    def deadline_ms(self, now_ms: int) -> int | None:
        """Returns when `start` may return something, if nothing else happens until then."""
        if not self._ready and not self._waiting:
            return None
        if self.in_flight >= self._limit:
            return None
        due_ms = now_ms if self._ready else self._waiting[0][0]
        if self.rate_per_s is not None and self._tokens < 1:
            due_ms = max(due_ms, self._tokens_ms + int((1 - self._tokens) / self.rate_per_s * 1_000) + 1)
        return max(due_ms, self._hold_until_ms, self._open_until_ms)

    # ---- inside

    @property
    def _limit(self) -> int:
        return 1 if self.broken else self._policy.concurrency

    def _may_start(self, now_ms: int) -> bool:
        if self.in_flight >= self._limit or now_ms < max(self._hold_until_ms, self._open_until_ms):
            return False
        return self.rate_per_s is None or self._tokens >= 1

    def _refill(self, now_ms: int) -> None:
        if self.rate_per_s is not None:
            passed_ms = max(now_ms - self._tokens_ms, 0)
            self._tokens = min(self._tokens + passed_ms * self.rate_per_s / 1_000, max(1.0, self.rate_per_s))
        self._tokens_ms = now_ms

    def _works(self) -> None:
        """Closes the breaker: the sink has looked at an event."""
        self._failures = self._open_until_ms = 0
        if self.broken:
            self.broken, self._trial = False, None
            self._breaker.reset()

    def _wait(self, one: Attempt, until_ms: int) -> None:
        one.not_before_ms = until_ms
        heapq.heappush(self._waiting, (until_ms, one.number, one))

    def _settle(self, one: Attempt) -> None:
        """Lets an event go; it is the turn of the next of its key."""
        group = group_of(one.position.frame)
        del self._held[group][one.number]
        one.settled = True
        self.held_count -= 1
        self.held_bytes -= one.size
        lane = self._lanes[one.key]
        assert lane[0] is one
        lane.popleft()
        if lane:
            self._ready.append(lane[0])
        else:
            del self._lanes[one.key]
