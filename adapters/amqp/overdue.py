"""Consumers that keep messages without acknowledging them: after a time the channel closes, as RabbitMQ's do.

The time is looked at now and then, for a whole channel, so that a delivered message costs nothing: all messages up to
a delivery tag had been delivered by a time.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from adapters.amqp.codec.wire import PRECONDITION_FAILED

LOOKS_COUNT: Final = 16  # within the time that a consumer has
LOOK_MS_MIN: Final = 1_000  # between two looks


class HoldingChannel(Protocol):
    """The parts of a channel by which its consumers are seen to hold messages."""

    number: int
    delivered: int

    @property
    def open(self) -> bool:
        """Returns whether the channel is in use."""

    @property
    def unacknowledged(self) -> Mapping[int, object]:
        """Returns what has been delivered and not settled, by delivery tag, ascending."""

    def fail(self, code: int, text: str, index: int) -> None:
        """Closes the channel for an error."""


class AcknowledgementTimeout:
    """The times by which the channels of one connection had been delivered what they hold; `timeout_s` 0: no limit."""

    __slots__ = ("_delivered", "_due_ms", "_step_ms", "_timeout_ms")

    def __init__(self, timeout_s: int) -> None:
        self._timeout_ms = timeout_s * 1_000
        self._step_ms = max(self._timeout_ms // LOOKS_COUNT, LOOK_MS_MIN)
        self._due_ms: int | None = None  # None before the first look
        # The time of a look and the last delivery tag by then, of channels with unacknowledged messages.
        self._delivered: dict[HoldingChannel, list[tuple[int, int]]] = {}

    def due_ms(self, channels: Iterable[HoldingChannel]) -> int | None:
        """Returns when to look at channels again; None: not at all, or nothing has been looked at yet."""
        return self._due_ms if any(channel.open for channel in channels) else None

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
