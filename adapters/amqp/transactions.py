"""The transaction of a channel: its publishes and acknowledgements since the last commit (AMQP 0-9-1, 1.9)."""

from typing import Final, NamedTuple

from adapters.amqp.codec.structured import body_of
from adapters.amqp.codec.wire import PRECONDITION_FAILED
from adapters.amqp.connection_output import ConnectionOutput
from adapters.amqp.consumers import Consumer
from gateway.domain.errors import ProtocolError
from store.api.message import Message
from store.format.frame import QueueNumber, QueueOffset

MESSAGE_BYTES: Final = 1_024  # of memory that a message takes besides its body and large properties, about
HEADS_BYTES_MAX: Final = 128 << 20  # of that in all transactions of a connection


class _Settled(NamedTuple):
    """A delivered message that the transaction acknowledges, rejects or gives back."""

    outcome: str
    consumer: Consumer
    offset: QueueOffset


class Work(NamedTuple):
    """The publishes and settlements of one commit."""

    messages: list[Message]
    mandatory: list[int]  # indexes of messages
    settled: dict[int, _Settled]  # by delivery tag
    copied: bool = False  # some of the messages have more routing keys

    def acknowledged(self) -> list[tuple[QueueNumber, list[QueueOffset]]]:
        """Returns the offsets that are acknowledged, by queue."""
        found: dict[QueueNumber, list[QueueOffset]] = {}
        for one in self.settled.values():
            if one.outcome == "ack":
                found.setdefault(QueueNumber(one.consumer.number), []).append(one.offset)
        return list(found.items())


class Transaction:
    """The work of a channel since the last commit.

    The bytes of all bodies are counted in `output.transaction_bytes`, the rest in `output.transaction_heads_bytes`.
    """

    def __init__(self, output: ConnectionOutput) -> None:
        self._output = output
        self._work = Work([], [], {})
        self._size_bytes = self._heads_bytes = 0
        self._copied = False

    @property
    def settled_count(self) -> int:
        """Returns how many delivered messages it settles."""
        return len(self._work.settled)

    def add(self, message: Message, *, mandatory: bool, copied: bool = False, head_bytes: int = 0) -> None:
        """Publishes a message with the commit, whose properties are counted as `head_bytes`.

        Raises `ProtocolError` (PRECONDITION_FAILED) where that is too much.
        """
        output, work = self._output, self._work
        if len(work.messages) >= output.options.transaction_count_max:
            raise ProtocolError(
                PRECONDITION_FAILED,
                f"a transaction has at most {output.options.transaction_count_max} messages "
                "(adapters.amqp.transaction_count_max)",
            )
        size_bytes, head_bytes = len(body_of(message)), MESSAGE_BYTES + head_bytes
        if 0 < output.transaction_bytes > output.options.transaction_bytes_max - size_bytes:
            raise ProtocolError(
                PRECONDITION_FAILED,
                f"transactions have at most {output.options.transaction_bytes_max} bytes of bodies "
                "(adapters.amqp.transaction_bytes_max)",
            )
        if 0 < output.transaction_heads_bytes > HEADS_BYTES_MAX - head_bytes:
            raise ProtocolError(
                PRECONDITION_FAILED, "the transactions of a connection have too many messages, or too large properties"
            )
        if mandatory:
            work.mandatory.append(len(work.messages))
        work.messages.append(message)
        self._copied = self._copied or copied
        self._size_bytes += size_bytes
        self._heads_bytes += head_bytes
        output.transaction_bytes += size_bytes
        output.transaction_heads_bytes += head_bytes

    def settle(self, tag: int, outcome: str, consumer: Consumer, offset: QueueOffset) -> None:
        """Settles a delivered message with the commit."""
        self._work.settled[tag] = _Settled(outcome, consumer, offset)

    def take(self) -> Work:
        """Takes all that is to be done; the next transaction begins."""
        work, self._work = self._work._replace(copied=self._copied), Work([], [], {})
        self._copied = False
        self._output.transaction_bytes -= self._size_bytes
        self._output.transaction_heads_bytes -= self._heads_bytes
        self._size_bytes = self._heads_bytes = 0
        return work

    def forget(self) -> dict[int, tuple[Consumer, QueueOffset]]:
        """Does nothing of it; returns the messages that are not acknowledged after all, by their delivery tags."""
        return {tag: (one.consumer, one.offset) for tag, one in self.take().settled.items()}
