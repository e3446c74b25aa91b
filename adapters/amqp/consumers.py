"""A consumer of a channel: the messages that it can still take, and the time that it has to acknowledge them."""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from adapters.amqp.codec.delivery import deliver_prefix
from adapters.amqp.codec.wire import PRECONDITION_FAILED
from gateway.port.adapter import ConsumerId, Leased

LOOKS_COUNT: Final = 16  # within the time that a consumer has
LOOK_MS_MIN: Final = 1_000  # between two looks
_UNLIMITED_COUNT: Final = 1 << 30  # the credit of a consumer without acknowledgements


class ConsumerChannel(Protocol):
    """The parts of a channel that its consumers, and their deliveries, need."""

    flowing: bool
    prefetch_shared: int

    @property
    def open(self) -> bool:
        """Returns whether the channel is in use."""

    @property
    def prefetch_max(self) -> int:
        """Returns how many messages a new consumer may have without acknowledging them."""

    @property
    def held_count(self) -> int:
        """Returns how many delivered messages the channel's consumers have not acknowledged for good."""

    def deliver(self, consumer: "Consumer", leased: Leased, now_ms: int) -> int:
        """Sends messages up to a consumer's credit; returns how many."""

    def cancelled(self, consumer: "Consumer") -> None:
        """Ends a consumer that the gateway has ended, as its queue is gone."""


class Consumer:
    """A consumer of this connection; basic.get makes one for the message it fetched."""

    __slots__ = (
        "blocked",
        "channel",
        "confirmed",
        "id",
        "no_ack",
        "number",
        "prefetch",
        "prefix",
        "queue",
        "tag",
        "unacknowledged",
    )

    def __init__(self, channel: ConsumerChannel, id_: ConsumerId, tag: str, queue: str, *, no_ack: bool) -> None:
        self.channel = channel
        self.id = id_
        self.tag = tag
        self.queue = queue
        self.number = 0  # the queue's, known with its first message
        self.no_ack = no_ack
        self.prefetch = channel.prefetch_max
        self.prefix = deliver_prefix(tag)
        self.unacknowledged = 0  # <= prefetch
        self.blocked = False  # took less than offered
        self.confirmed = False  # basic.consume has been answered

    @property
    def credit(self) -> int:
        """Returns how many messages it can take."""
        channel = self.channel
        if not self.confirmed or not channel.flowing or not channel.open:
            return 0
        if self.no_ack:
            return _UNLIMITED_COUNT
        credit = self.prefetch - self.unacknowledged
        if channel.prefetch_shared:
            credit = min(credit, channel.prefetch_shared - channel.held_count)
        return max(0, credit)


# ---- messages that are held for too long


class HoldingChannel(Protocol):
    """The parts of a channel by which its consumers are seen to hold messages."""

    number: int
    delivered: int

    @property
    def open(self) -> bool:
        """Returns whether the channel is in use."""

    @property
    def unacknowledged(self) -> Mapping[int, object]:
        """Returns the delivered messages that are not settled, by delivery tag, ascending."""

    def fail(self, code: int, text: str, index: int) -> None:
        """Closes the channel for an error."""


class AcknowledgementTimeout:
    """The times by which the channels of one connection have to acknowledge their deliveries; `timeout_s` 0: no limit.

    They are looked at now and then, for a whole channel, so that a delivered message costs nothing: all up to a
    delivery tag had been delivered by a time.
    """

    __slots__ = ("_delivered", "_due_ms", "_step_ms", "_timeout_ms")

    def __init__(self, timeout_s: int) -> None:
        self._timeout_ms = timeout_s * 1_000
        self._step_ms = max(self._timeout_ms // LOOKS_COUNT, LOOK_MS_MIN)
        self._due_ms: int | None = None  # None before the first look
        # The time of a look and the last delivery tag by then, of channels with unacknowledged messages.
        self._delivered: dict[HoldingChannel, list[tuple[int, int]]] = {}

    def clock_set(self, by_ms: int) -> None:
        """Moves the times of all looks: the clock was set."""
        if self._due_ms is not None:
            self._due_ms += by_ms
        for marks in self._delivered.values():
            marks[:] = [(at_ms + by_ms, delivered) for at_ms, delivered in marks]

    def due_ms(self, channels: Iterable[HoldingChannel]) -> int | None:
        """Returns when to look at channels again; None: not at all, or nothing has been looked at yet."""
        if self._due_ms is None:
            return None
        for channel in channels:  # mostly the first one: no generator for that
            if channel.open:
                return self._due_ms
        return None

    def tick(self, channels: Iterable[HoldingChannel], now_ms: int) -> None:
        """Closes channels (406) with a message that has been held for too long."""
        if not self._timeout_ms or now_ms < (self._due_ms or 0):
            return
        self._due_ms = now_ms + self._step_ms
        holding = [channel for channel in channels if channel.unacknowledged]
        self._delivered = {channel: self._delivered.get(channel, []) for channel in holding}
        for channel, marks in self._delivered.items():
            while len(marks) > 1 and marks[1][0] + self._timeout_ms <= now_ms:
                del marks[0]
            if marks and marks[0][0] + self._timeout_ms <= now_ms and next(iter(channel.unacknowledged)) <= marks[0][1]:
                channel.fail(
                    PRECONDITION_FAILED,
                    f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: "
                    f"{self._timeout_ms} ms (adapters.amqp.consumer_timeout_s)",
                    0,
                )
            else:
                marks.append((now_ms, channel.delivered))
