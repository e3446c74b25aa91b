"""The methods that a client may send on a channel (AMQP 0-9-1, 1.5 to 1.8, and RabbitMQ's extensions).

A method that asks the gateway something delays the channel's later methods until the answer comes, and is itself
delayed until the channel's earlier publishes are stored: a channel sees its own messages. One that looks into a queue
waits for the earlier publishes of all channels of the connection: RabbitMQ stores that before it reads on.
"""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias

from pamqp.base import Frame
from pamqp.commands import Basic, Confirm, Exchange, Queue, Tx
from pamqp.commands import Channel as Methods

from adapters.amqp import tx
from adapters.amqp.channel import Channel, ChannelState
from adapters.amqp.codec.access import AccessRequest, AccessRequestOk
from adapters.amqp.codec.properties import REPLY_TO
from adapters.amqp.codec.streams import ARGUMENTS, PREFIX, stream_read
from adapters.amqp.codec.wire import (
    COMMAND_INVALID,
    NOT_ALLOWED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    Table,
)
from adapters.amqp.consumers import Consumer
from gateway.domain.errors import ProtocolError
from gateway.domain.vhosts import REPLIES, local_name, said
from gateway.port.adapter import Cancel, Consume, Outcome, Request
from gateway.port.queues import (
    EXCHANGE_KINDS,
    BindExchange,
    BindQueue,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    GetMessage,
    PurgeQueue,
    QueueInfo,
    UnbindExchange,
    UnbindQueue,
    field_type,
    invalid_argument,
)

_U32_MAX: Final = 0xFFFFFFFF


def handle(channel: Channel, method: Frame, *, unsent: bool) -> bool:
    """Carries out a method; returns False when it has to wait, and is handled again later. Raises `ProtocolError`.

    `unsent` says that this read holds messages of the channel which the gateway does not know of yet.
    """
    if channel.state is ChannelState.CLOSING:
        _while_closing(channel, method)
        return True
    entry = _METHODS.get(method.index)
    if entry is None:
        raise ProtocolError(COMMAND_INVALID, f"{method.name} is not for a client to send on a channel")
    handler, waits = entry
    if waits is Waits.CHANNEL and (channel.outstanding or unsent):
        return False
    if waits is Waits.CONNECTION and channel.output.unanswered:
        return False
    if handler is _get and not channel.output.may_fetch:
        return False
    handler(channel, method)
    return True


def _while_closing(channel: Channel, method: Frame) -> None:
    if isinstance(method, Methods.CloseOk):
        _forget(channel)
    elif isinstance(method, Methods.Close):  # both sides at once
        channel.send(Methods.CloseOk)


def _ask(channel: Channel, method: Any, request: Request[Any], reply: type[Frame]) -> None:
    """Asks the gateway something; its answer is the reply's one argument, or that it is done."""

    def then(value: int | None) -> None:
        if not getattr(method, "nowait", False):
            channel.send(reply, *(() if value is None else (min(value, _U32_MAX),)))

    channel.ask(method.index, request, then)


def _queue(channel: Channel, name: str) -> str:
    """Returns the gateway's name of a queue; none stands for the queue declared last (AMQP 0-9-1, 1.7.2.3)."""
    if not name and not channel.queue:
        raise ProtocolError(NOT_FOUND, "no previously declared queue")
    return channel.output.inside(name or channel.queue)


# ---- class channel


def _close(channel: Channel, _method: Any) -> None:
    channel.end(ChannelState.CLOSED)
    channel.send(Methods.CloseOk)
    _forget(channel)


def _forget(channel: Channel) -> None:
    channel.output.forget_channel(channel.number)


def _flow(channel: Channel, method: Any) -> None:
    channel.flowing = method.active
    channel.send(Methods.FlowOk, method.active)
    channel.free_consumers()


def _nothing(channel: Channel, method: Any) -> None:
    """Ignores an answer to something of ours that needs no reaction."""


def _access_request(channel: Channel, _method: Any) -> None:
    channel.send(AccessRequestOk, 1)


# ---- class exchange


def _exchange_declare(channel: Channel, method: Any) -> None:
    if not method.passive and method.exchange_type not in EXCHANGE_KINDS:
        raise ProtocolError(COMMAND_INVALID, f"unknown exchange type '{method.exchange_type}'")
    request = DeclareExchange(
        name=channel.output.inside(method.exchange),
        kind=method.exchange_type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        passive=method.passive,
        arguments=method.arguments,
    )
    _ask(channel, method, request, Exchange.DeclareOk)


def _exchange_delete(channel: Channel, method: Any) -> None:
    request = DeleteExchange(name=channel.output.inside(method.exchange), if_unused=method.if_unused)
    _ask(channel, method, request, Exchange.DeleteOk)


def _exchange_bind(channel: Channel, method: Any) -> None:
    _ask(channel, method, BindExchange(**_exchange_binding(channel, method)), Exchange.BindOk)


def _exchange_unbind(channel: Channel, method: Any) -> None:
    _ask(channel, method, UnbindExchange(**_exchange_binding(channel, method)), Exchange.UnbindOk)


def _exchange_binding(channel: Channel, method: Any) -> dict[str, Any]:
    """Returns the binding that exchange.bind and exchange.unbind name."""
    return {
        "destination": channel.output.inside(method.destination),
        "source": channel.output.inside(method.source),
        "routing_key": method.routing_key,
        "arguments": method.arguments,
    }


# ---- class queue


def _queue_declare(channel: Channel, method: Any) -> None:
    if method.queue.startswith(REPLY_TO):
        _declare_replies(channel, method)
        return

    def then(info: QueueInfo) -> None:
        channel.queue = local_name(info.name)
        if not method.nowait:
            channel.send(Queue.DeclareOk, channel.queue, min(info.messages, _U32_MAX), info.consumers)

    request = DeclareQueue(
        name=_queue(channel, method.queue) if method.passive else channel.output.inside(method.queue),
        durable=method.durable,
        exclusive=method.exclusive,
        auto_delete=method.auto_delete,
        passive=method.passive,
        arguments=method.arguments,
    )
    channel.ask(method.index, request, then)


def _declare_replies(channel: Channel, method: Any) -> None:
    """Answers whether there is a queue for answers, which is never declared: as if `passive` were set (as RabbitMQ)."""

    def then(_info: QueueInfo | None) -> None:
        channel.queue = method.queue
        if not method.nowait:
            channel.send(Queue.DeclareOk, method.queue, 0, 1)

    if method.queue in (REPLY_TO, REPLIES):  # a client asks whether there is such a thing
        then(None)
    else:
        channel.ask(method.index, DeclareQueue(name=channel.output.inside(method.queue), passive=True), then)


def _queue_bind(channel: Channel, method: Any) -> None:
    _ask(channel, method, BindQueue(**_queue_binding(channel, method)), Queue.BindOk)


def _queue_unbind(channel: Channel, method: Any) -> None:
    _ask(channel, method, UnbindQueue(**_queue_binding(channel, method)), Queue.UnbindOk)


def _queue_binding(channel: Channel, method: Any) -> dict[str, Any]:
    """Returns the binding that queue.bind and queue.unbind name."""
    return {
        "queue": _queue(channel, method.queue),
        "exchange": channel.output.inside(method.exchange),
        "routing_key": method.routing_key or ("" if method.queue else channel.queue),
        "arguments": method.arguments,
    }


def _queue_purge(channel: Channel, method: Any) -> None:
    _ask(channel, method, PurgeQueue(name=_queue(channel, method.queue)), Queue.PurgeOk)


def _queue_delete(channel: Channel, method: Any) -> None:
    name = _queue(channel, method.queue)
    request = DeleteQueue(name=name, if_unused=method.if_unused, if_empty=method.if_empty)
    _ask(channel, method, request, Queue.DeleteOk)


# ---- class basic


def _qos(channel: Channel, method: Any) -> None:
    """Sets the prefetch. `global` is the channel here, else consumers to come, as RabbitMQ has taught all clients.

    As there, a prefetch of consumers to come ends the one of the channel.
    """
    if method.prefetch_size:
        raise ProtocolError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})")
    if not method.global_:
        channel.prefetch = method.prefetch_count
    channel.prefetch_shared = method.prefetch_count if method.global_ else 0
    channel.free_consumers()
    channel.send(Basic.QosOk)


def _consume(channel: Channel, method: Any) -> None:
    output, queue = channel.output, _queue(channel, method.queue)
    priority = _consumer_priority(method.arguments, queue)
    if method.consumer_tag in channel.consumers:
        raise ProtocolError(NOT_ALLOWED, f"attempt to reuse consumer tag '{method.consumer_tag}'")
    if len(channel.consumers) >= output.options.consumer_count_max:
        raise ProtocolError(NOT_ALLOWED, f"a channel has at most {output.options.consumer_count_max} consumers")
    tag = method.consumer_tag or f"amq.ctag-{output.random.getrandbits(128):032x}"
    if local_name(queue) == REPLY_TO:
        _consume_replies(channel, method, tag, priority)
    else:
        _begin(channel, method, tag, queue, priority)


def _consume_replies(channel: Channel, method: Any, tag: str, priority: int) -> None:
    """Begins a consumer of a queue for answers, which is made for it."""
    if not method.no_ack:
        raise ProtocolError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.reply_queue:
        raise ProtocolError(PRECONDITION_FAILED, "reply consumer already set")

    def then(info: QueueInfo) -> None:
        channel.reply_queue = info.name
        _begin(channel, method, tag, info.name, priority)

    name = channel.output.inside(REPLIES)
    channel.ask(method.index, DeclareQueue(name=name, exclusive=True, auto_delete=True), then)


def _begin(channel: Channel, method: Any, tag: str, queue: str, priority: int) -> None:
    output, stream = channel.output, stream_read(method.arguments)
    consumer = Consumer(channel, output.new_consumer_id(), tag, queue, no_ack=method.no_ack)
    channel.consumers[tag] = consumer
    output.add_consumer(consumer)
    channel.waiting = True
    output.emit(
        Consume(
            consumer=consumer.id,
            queue=queue,
            token=output.expect(partial(_consuming, channel, consumer, method)),
            exclusive=method.exclusive,
            settle_on_delivery=method.no_ack,
            credit=None if method.no_ack else min(consumer.prefetch, channel.prefetch_shared or consumer.prefetch),
            shares=channel.number if channel.prefetch_shared else 0,
            priority=priority,
            stream=stream,
            limited=channel.prefetch > 0,
        )
    )


def _consumer_priority(arguments: Table, queue: str) -> int:
    """Returns the priority that the arguments of a queue's consumer say. Raises `ProtocolError` where it is no number.

    Unknown arguments are ignored, as in RabbitMQ, except those of streams: they might ask for less.
    """
    for name in arguments:
        if name.startswith(PREFIX) and name not in ARGUMENTS:
            raise ProtocolError(PRECONDITION_FAILED, f"the consumer argument {name!r} is not supported")
    priority = arguments.get("x-priority", 0)
    if type(priority) is not int:
        why = f"expected integer, got {field_type(priority)}"
        raise ProtocolError(PRECONDITION_FAILED, invalid_argument("x-priority", f"queue {said(queue)}", why).detail)
    return priority


def _consuming(channel: Channel, consumer: Consumer, method: Any, outcome: Outcome, _now_ms: int) -> None:
    if not channel.open and outcome.error is None:
        channel.output.emit(Cancel(consumer=consumer.id))  # it began after the channel had ended

    def then(_value: Any) -> None:
        if not method.nowait:
            channel.send(Basic.ConsumeOk, consumer.tag)
        consumer.confirmed = True
        if consumer.blocked:
            channel.output.freed(consumer)

    channel.answered(method.index, outcome, then)


def _cancel(channel: Channel, method: Any) -> None:
    consumer = channel.consumers.pop(method.consumer_tag, None)
    if consumer is not None:
        channel.output.drop_consumer(consumer)
        if consumer.queue == channel.reply_queue:
            channel.reply_queue = ""
    if not method.nowait:
        channel.send(Basic.CancelOk, method.consumer_tag)


def _get(channel: Channel, method: Any) -> None:
    if len(channel.unacknowledged) >= channel.output.options.unacknowledged_count_max:
        raise ProtocolError(PRECONDITION_FAILED, "too many messages are delivered and not acknowledged")
    queue = _queue(channel, method.queue)

    def answered(outcome: Outcome, now_ms: int) -> None:
        channel.output.fetching_count -= 1
        got = outcome.value
        if got is not None and not channel.open and not method.no_ack:
            channel.output.settled((queue, got.leased.number), "requeue", got.leased.offsets[:1])

        def then(_value: Any) -> None:
            if got is None:
                channel.send(Basic.GetEmpty, "")
            else:
                channel.fetched(got, queue, no_ack=method.no_ack, now_ms=now_ms)

        channel.answered(method.index, outcome, then)

    channel.waiting = True
    channel.output.fetching_count += 1
    channel.output.call(GetMessage(queue=queue, settle=method.no_ack), answered)


def _ack(channel: Channel, method: Any) -> None:
    channel.settle(method.delivery_tag, "ack", multiple=method.multiple)


def _nack(channel: Channel, method: Any) -> None:
    channel.settle(method.delivery_tag, "requeue" if method.requeue else "reject", multiple=method.multiple)


def _reject(channel: Channel, method: Any) -> None:
    channel.settle(method.delivery_tag, "requeue" if method.requeue else "reject", multiple=False)


def _recover(channel: Channel, method: Any) -> None:
    if not method.requeue:
        raise ProtocolError(NOT_IMPLEMENTED, "requeue=false")
    channel.recover()
    if isinstance(method, Basic.Recover):
        channel.send(Basic.RecoverOk)


# ---- class confirm


def _confirm_select(channel: Channel, method: Any) -> None:
    if channel.transaction is not None:
        raise ProtocolError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
    if not channel.confirming:
        channel.confirming, channel.published = True, 0
    if not method.nowait:
        channel.send(Confirm.SelectOk)


class Waits(Enum):
    """The messages published before for which a method waits until they are stored."""

    NOTHING = "nothing"
    CHANNEL = "channel"  # those of its channel
    CONNECTION = "connection"  # those of all channels


_Handler: TypeAlias = Callable[[Channel, Any], None]

# The handler of every method, and the events that it waits for.
_METHODS: Final[dict[int, tuple[_Handler, Waits]]] = {
    Methods.Close.index: (_close, Waits.CHANNEL),
    Methods.Flow.index: (_flow, Waits.NOTHING),
    Methods.FlowOk.index: (_nothing, Waits.NOTHING),
    AccessRequest.index: (_access_request, Waits.NOTHING),
    Exchange.Declare.index: (_exchange_declare, Waits.CHANNEL),
    Exchange.Delete.index: (_exchange_delete, Waits.CHANNEL),
    Exchange.Bind.index: (_exchange_bind, Waits.CHANNEL),
    Exchange.Unbind.index: (_exchange_unbind, Waits.CHANNEL),
    Queue.Declare.index: (_queue_declare, Waits.CONNECTION),
    Queue.Bind.index: (_queue_bind, Waits.CHANNEL),
    Queue.Unbind.index: (_queue_unbind, Waits.CHANNEL),
    Queue.Purge.index: (_queue_purge, Waits.CONNECTION),
    Queue.Delete.index: (_queue_delete, Waits.CONNECTION),
    Basic.Qos.index: (_qos, Waits.CHANNEL),
    Basic.Consume.index: (_consume, Waits.CHANNEL),
    Basic.Cancel.index: (_cancel, Waits.NOTHING),
    Basic.CancelOk.index: (_nothing, Waits.NOTHING),
    Basic.Get.index: (_get, Waits.CONNECTION),
    Basic.Ack.index: (_ack, Waits.NOTHING),
    Basic.Nack.index: (_nack, Waits.NOTHING),
    Basic.Reject.index: (_reject, Waits.NOTHING),
    Basic.Recover.index: (_recover, Waits.NOTHING),
    Basic.RecoverAsync.index: (_recover, Waits.NOTHING),
    Confirm.Select.index: (_confirm_select, Waits.CHANNEL),
    Tx.Select.index: (tx.select, Waits.CHANNEL),
    Tx.Commit.index: (tx.commit, Waits.CHANNEL),
    Tx.Rollback.index: (tx.rollback, Waits.CHANNEL),
}
