"""A consumer of a channel: the messages that it can still take."""

from typing import Final, Protocol

from adapters.amqp.codec.delivery import deliver_prefix
from gateway.port.adapter import ConsumerId, Leased

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
        """Sends what a consumer has credit for; returns how many messages that is."""

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
