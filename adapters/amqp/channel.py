"""One channel: its consumers, its confirms, its unacknowledged deliveries. `methods` has its methods' effects."""

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pamqp.base import Frame
from pamqp.commands import Basic
from pamqp.commands import Channel as Methods

from adapters.amqp.codec.delivery import deliver_frames, get_ok_frames
from adapters.amqp.codec.wire import (
    FRAME_END,
    FRAME_METHOD,
    PRECONDITION_FAILED,
    REPLY_CODES,
    method_frame,
    reply_text,
)
from adapters.amqp.connection_output import ConnectionOutput
from adapters.amqp.consumers import Consumer
from adapters.amqp.downloads import Download
from adapters.amqp.publishing import Content
from adapters.amqp.transactions import Transaction
from gateway.domain.access import Denied
from gateway.domain.access_names import DEFAULT_EXCHANGE
from gateway.domain.errors import ProtocolError, Refusal
from gateway.domain.vhosts import in_vhost, said, split_name
from gateway.port.adapter import ConsumerId, Leased, Outcome, Request
from gateway.port.bodies import BodyParts, parts_of
from gateway.port.operated import Described
from gateway.port.queues import Got, routing_of
from store.api.message import Message
from store.format.frame import QueueOffset

_CONFIRM = struct.Struct(">BHIHHQBB")  # a whole frame of basic.ack or basic.nack
_CONFIRM_BYTES: Final = 13  # its payload
_BASIC, _ACK, _NACK = 60, 80, 120
_consumer = itemgetter(0)  # of an unacknowledged delivery


class ChannelState(Enum):
    """The states of a channel."""

    OPEN = "open"
    CLOSING = "closing"  # we have closed it; everything but channel.close-ok is skipped
    CLOSED = "closed"


class Channel:
    """The state of a channel."""

    def __init__(self, output: ConnectionOutput, number: int) -> None:
        self.output = output
        self.number = number
        self.state = ChannelState.OPEN
        self.waiting = False  # for the gateway's answer to a method
        self.flowing = True  # channel.flow
        self.content: Content | None = None  # the message being published
        self.confirming = False  # confirm.select
        self.published = 0  # messages, with confirm.select since then: the next one's tag is one more
        self.outstanding = 0  # groups of messages that have not been answered
        self.queue = ""  # the queue declared last, which an empty name stands for
        self.reply_queue = ""  # for answers: see `adapters.amqp.codec.direct_reply`
        self.transaction: Transaction | None = None  # tx.select
        self.prefetch = 0  # of consumers to come; 0: no limit of the client's
        self.prefetch_shared = 0  # of all consumers together; 0: none
        self.consumers: dict[str, Consumer] = {}
        self.delivered = 0  # messages: the next one's delivery tag is one more
        self.fetched_count = 0  # by basic.get, and not acknowledged for good
        self.unacknowledged: dict[int, tuple[Consumer, QueueOffset]] = {}  # by delivery tag, ascending

    @property
    def open(self) -> bool:
        """Returns whether the channel is in use."""
        return self.state is ChannelState.OPEN

    @property
    def publishable(self) -> bool:
        """Returns whether a message may begin now."""
        return (
            self.state is ChannelState.OPEN and not self.waiting and self.content is None and self.transaction is None
        )

    @property
    def prefetch_max(self) -> int:
        """Returns how many messages a new consumer may have without acknowledging them."""
        return self.prefetch or self.output.options.unacknowledged_count_max

    @property
    def held_count(self) -> int:
        """Returns how many messages its consumers have not acknowledged for good: a transaction can give them back."""
        held = 0 if self.transaction is None else self.transaction.settled_count
        return len(self.unacknowledged) + held - self.fetched_count

    def send(self, method: type[Frame], *values: Any) -> None:
        """Sends a method on this channel."""
        self.output.write(method_frame(self.number, method, *values))

    def ask(self, index: int, request: Request[Any], then: Callable[[Any], None]) -> None:
        """Asks the gateway; the channel waits for the answer, and a refusal closes it. `index` is the method's."""
        self.waiting = True
        self.output.call(request, lambda outcome, _now_ms: self.answered(index, outcome, then))

    def answered(self, index: int, outcome: Outcome, then: Callable[[Any], None]) -> None:
        """Passes on the gateway's answer to a method."""
        self.waiting = False
        if not self.open:
            return
        if outcome.error is not None:
            self.fail(REPLY_CODES[outcome.error.cause], _why(outcome.error), index)
        else:
            then(outcome.value)

    # ---- the end

    def fail(self, code: int, text: str, index: int) -> None:
        """Closes the channel for an error (AMQP 0-9-1, 1.5.2.5); `index` is the method's that caused it."""
        if self.open:
            self.end(ChannelState.CLOSING)
            self.send(Methods.Close, code, reply_text(code, text), index >> 16, index & 0xFFFF)

    def end(self, state: ChannelState) -> None:
        """Delivers no more, and gives back unacknowledged messages."""
        self.state = state
        self.drop_content()
        for consumer in self.consumers.values():
            self.output.drop_consumer(consumer)
        self.consumers.clear()
        if self.transaction is not None:
            self.unacknowledged |= self.transaction.forget()
        for consumer, offset in self.unacknowledged.values():
            self.output.settled((consumer.queue, consumer.number), "requeue", (offset,))
        self.unacknowledged.clear()

    def drop_content(self) -> None:
        """Forgets the message whose body is not whole."""
        if self.content is not None:
            self.output.assembling_bytes -= self.content.held_bytes
            self.output.share.release(self.content.reserved_bytes)
            self.content = None

    # ---- delivering

    def deliver(self, consumer: Consumer, leased: Leased, now_ms: int) -> int:
        """Sends messages up to a consumer's credit; returns how many."""
        count, parts = _deliverable(leased.messages[: consumer.credit])
        consumer.blocked = count < len(leased.messages)
        if count == 0:
            return 0
        first = self.delivered + 1
        frames = deliver_frames(
            self.number,
            consumer.prefix,
            first,
            leased.messages[:count],
            leased.deliveries[:count],
            payload_max=self.output.payload_max,
            now_ms=now_ms,
        )
        if parts is None:
            self.output.write(*frames)
        else:
            self.output.write_body(frames, Download(self.number, parts, partial(self.forsake, first + count - 1)))
        self.delivered += count
        if not consumer.no_ack:
            if self.prefetch_shared:
                self._served(consumer)
            consumer.unacknowledged += count
            consumer.number = leased.number
            self.unacknowledged.update(enumerate([(consumer, offset) for offset in leased.offsets[:count]], first))
        return count

    def _served(self, consumer: Consumer) -> None:
        """Puts a consumer behind the others: they are the first to use the room that the channel's prefetch leaves."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
            self.consumers[consumer.tag] = consumer

    def fetched(self, got: Got, queue: str, *, no_ack: bool, now_ms: int) -> None:
        """Sends the message that basic.get has found."""
        self.delivered += 1
        if not no_ack:
            consumer = Consumer(self, ConsumerId(0), "", queue, no_ack=False)
            consumer.unacknowledged = 1
            self.fetched_count += 1
            consumer.number = got.leased.number
            self.unacknowledged[self.delivered] = consumer, got.leased.offsets[0]
        message = got.leased.messages[0]
        frames = get_ok_frames(
            self.number,
            self.delivered,
            message,
            redelivered=got.leased.deliveries[0] > 0,
            remaining=got.remaining,
            payload_max=self.output.payload_max,
            now_ms=now_ms,
        )
        parts = parts_of(message)
        if parts is None:
            self.output.write(*frames)
        else:
            self.output.write_body(frames, Download(self.number, parts, partial(self.forsake, self.delivered)))

    def forsake(self, tag: int) -> None:
        """Settles a delivered message whose body is lost in part, so that it cannot be sent."""
        if tag in self.unacknowledged:
            consumer, offset = self.unacknowledged.pop(tag)
            self.done("ack", consumer, (offset,))

    def cancelled(self, consumer: Consumer) -> None:
        """Ends a consumer that the gateway has ended, as its queue or its right is gone."""
        if consumer.queue == self.reply_queue:
            self.reply_queue = ""
        if self.consumers.pop(consumer.tag, None) is not None and self.open and self.output.cancel_notify:
            self.send(Basic.Cancel, consumer.tag, True)

    def settle(self, tag: int, outcome: str, *, multiple: bool) -> None:
        """Acknowledges or gives back one message, or all up to one; tag 0 with `multiple` means all.

        Raises `ProtocolError` (PRECONDITION_FAILED) for a tag that is not known.
        """
        unacknowledged = self.unacknowledged
        tags: Sequence[int]
        if tag not in unacknowledged and (tag or not multiple):  # a tag beyond the last one must not acknowledge all
            raise ProtocolError(PRECONDITION_FAILED, f"unknown delivery tag {tag}")
        tags = list(_up_to(unacknowledged, tag or self.delivered)) if multiple else (tag,)
        if self.transaction is not None:
            for each in tags:
                self.transaction.settle(each, outcome, *unacknowledged.pop(each))
        else:
            self._settle(tags, outcome)

    def recover(self) -> None:
        """Gives back all messages that are not acknowledged: at once in a transaction, too, as RabbitMQ does."""
        self._settle(list(self.unacknowledged), "requeue")

    def _settle(self, tags: Sequence[int], outcome: str) -> None:
        if self.prefetch_shared:
            self.free_consumers()  # in their order: who was served last does not come first
        for consumer, taken in groupby(map(self.unacknowledged.pop, tags), key=_consumer):
            self.done(outcome, consumer, [offset for _, offset in taken])

    def done(self, outcome: str | None, consumer: Consumer, offsets: Sequence[QueueOffset]) -> None:
        """Settles messages delivered to a consumer, or, with None, notes that they are settled."""
        if outcome is not None:
            self.output.settled((consumer.queue, consumer.number), outcome, offsets)
        consumer.unacknowledged -= len(offsets)
        if not consumer.id:
            self.fetched_count -= len(offsets)
        self.output.freed(consumer)

    def free_consumers(self) -> None:
        """Notes that the credit of all consumers may have changed, of the one that was served last at the end."""
        for consumer in self.consumers.values():
            if consumer.blocked or not consumer.no_ack:
                self.output.freed(consumer)

    # ---- publishing

    def confirm(self, first: int, count: int, refused: Mapping[int, Refusal]) -> None:
        """Confirms or refuses the messages with the tags `first` to `first + count - 1`; `refused` is by tag."""
        done = first - 1
        for tag in sorted(refused):
            if tag - 1 > done:
                self._send_confirm(_ACK, tag - 1, multiple=tag - 1 > done + 1)
            self.refuse(tag, 1, refused[tag])
            if not self.open:
                return
            done = tag
        last = first + count - 1
        if last > done:
            self._send_confirm(_ACK, last, multiple=last > done + 1)

    def refuse(self, first: int, count: int, refusal: Refusal) -> None:
        """Refuses the messages with these tags: none of them was stored.

        A refusal that a later attempt may not meet is a basic.nack; without confirms the channel closes.
        """
        if self.confirming and refusal.retriable:
            self._send_confirm(_NACK, first + count - 1, multiple=count > 1)
        else:
            self.fail(REPLY_CODES[refusal.cause], _why(refusal), Basic.Publish.index)

    def _send_confirm(self, method: int, tag: int, *, multiple: bool) -> None:
        if self.confirming:
            self.output.write(
                _CONFIRM.pack(FRAME_METHOD, self.number, _CONFIRM_BYTES, _BASIC, method, tag, multiple, FRAME_END)
            )


def _why(refusal: Refusal) -> str:
    """Returns the words of a refusal, which are RabbitMQ's where a user may not publish to an exchange."""
    if not isinstance(refusal, Denied) or refusal.action != "publish":
        return refusal.detail
    exchange, _ = routing_of(refusal.address)
    vhost, name = split_name(exchange)
    return (
        f"write access to exchange {said(in_vhost(vhost, name or DEFAULT_EXCHANGE))} refused for user '{refusal.user}'"
    )


def _deliverable(messages: Sequence[Message]) -> tuple[int, BodyParts | None]:
    """Returns how many messages can be sent at once, and the parts of the last one's body where it has some.

    Later frames of the connection wait for a body in parts.
    """
    for count, message in enumerate(messages, 1):
        if not message.body and (parts := parts_of(message)) is not None:
            return count, parts
    return len(messages), None


def _up_to(tags: Mapping[int, Any], last: int) -> Iterator[int]:
    for tag in tags:
        if tag > last:
            return
        yield tag


def described(vhost: str, channels: Collection[Channel], consumers: int, *, blocked: bool) -> Described:
    """Returns the state of an open connection with these channels, and so many consumers."""
    unacknowledged = sum(len(channel.unacknowledged) for channel in channels)
    return Described(
        vhost=vhost, channels=len(channels), consumers=consumers, unacknowledged=unacknowledged, blocked=blocked
    )
