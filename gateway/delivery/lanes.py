"""Subscribers and their lanes: how far a subscriber has been served, in each log apart.

A lane is live or behind. Every log has its own tail; a subscriber that is behind in one of them is live in the others,
and a log that cannot be read holds up no subscriber in another.
"""

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from gateway.domain.access import Permissions
from gateway.domain.sql92 import Where
from gateway.port.adapter import Deliveries, SubscriptionId
from store.api.log import LogCalls
from store.format.frame import Frame, LogOffset, Position


class Receiver(Protocol):
    """A connection, as its subscriber sees it."""

    def deliver(self, deliveries: Deliveries) -> int:
        """Returns how many deliveries it took; fewer than offered means: not now."""


class _ClosedReceiver:
    """A receiver that is gone."""

    __slots__ = ()

    def deliver(self, deliveries: Deliveries) -> int:
        return 0


NOBODY: Final = _ClosedReceiver()


class Tail:
    """One log, as its newest frames come.

    Until the log has been `reached` it is not known where it ends, and `position` is where who comes meanwhile begins:
    where the log will turn out to end, or at its beginning, if it has joined after us.
    """

    __slots__ = ("epoch", "group", "known", "log", "position", "reached", "rewinds", "stop")

    def __init__(self, group: int, log: LogCalls, position: LogOffset) -> None:
        self.group = group
        self.log = log
        self.reached = False
        self.position = position  # behind the last frame offered
        self.epoch = 0  # of the last frame offered; 0: there was none
        self.known = LogOffset(0)  # the topics of everything before it are known here
        self.rewinds = 0
        self.stop: Callable[[], None] = lambda: None

    @property
    def now(self) -> Position:
        """Returns the position of the next message."""
        return Position(self.position, 0)

    def is_rewound(self, frame: Frame) -> bool:
        """Returns whether a frame before the position is new: its log has lost its end, and goes on with this frame.

        An unclean election does that. The new master writes frames of a later epoch.
        """
        if self.epoch:
            return frame.header.epoch > self.epoch
        return self.log.confirmed < self.position


class Subscriber:
    """One connection's subscriptions."""

    __slots__ = ("behind", "conditions", "lanes", "patterns", "permissions", "receiver")

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.patterns: dict[SubscriptionId, str] = {}
        self.conditions: dict[SubscriptionId, Where] = {}  # of subscriptions with one: messages have to pass it
        self.permissions: dict[SubscriptionId, Permissions] = {}  # of the reader, where it is known
        self.lanes: dict[int, Lane] = {}  # by group; whichever was served last is last
        self.behind = 0  # how many of the lanes are

    def may_read(self, sub: SubscriptionId, address: str) -> bool:
        """Returns whether a subscription's reader may read messages of an address."""
        permissions = self.permissions.get(sub)
        return permissions is None or permissions.access is None or permissions.access.may("subscribe", address)


class Lane:
    """A subscriber's way through one log."""

    __slots__ = ("behind", "cursor", "running", "since", "subscriber", "tail")

    def __init__(self, subscriber: Subscriber, tail: Tail, cursor: Position) -> None:
        self.subscriber = subscriber
        self.tail = tail
        self.cursor = cursor  # the next record to look at; of a live one, no later than the tail
        self.since: dict[
            SubscriptionId, Position
        ] = {}  # messages before it are not for this subscription; none: all are
        self.behind = False
        self.running = False  # a task is reading the log for it

    @property
    def current(self) -> bool:
        """Returns whether it is still its subscriber's lane in this log, and serves any subscription."""
        subscriber = self.subscriber
        return bool(subscriber.patterns) and subscriber.lanes.get(self.tail.group) is self

    @property
    def reached(self) -> Position:
        """Returns the first position that has not been delivered."""
        return self.cursor if self.behind else max(self.cursor, self.tail.now)


def rewind(tail: Tail, at: LogOffset, subscribers: Iterable[Subscriber]) -> None:
    """Continues from a log offset that all others have passed."""
    tail.position, tail.known = at, min(tail.known, at)
    tail.rewinds += 1
    now = tail.now
    for subscriber in subscribers:
        lane = subscriber.lanes[tail.group]
        lane.cursor = min(lane.cursor, now)
        lane.since = {sub: min(since, now) for sub, since in lane.since.items()}
