"""The methods of class tx (AMQP 0-9-1, 1.9)."""

from typing import Any

from pamqp.commands import Tx

from adapters.amqp.channel import Channel
from adapters.amqp.codec.delivery import return_frames
from adapters.amqp.codec.wire import PRECONDITION_FAILED
from adapters.amqp.transactions import Transaction
from gateway.domain.errors import ProtocolError
from gateway.port.adapter import Outcome, Publish
from gateway.port.transaction import SettlingTransaction


def select(channel: Channel, _method: Any) -> None:
    """Begins transactions on a channel. Raises `ProtocolError` (PRECONDITION_FAILED) where it has confirms."""
    if channel.confirming:
        raise ProtocolError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
    if channel.transaction is None:
        channel.transaction = Transaction(channel.output)
    channel.send(Tx.SelectOk)


def _transaction(channel: Channel) -> Transaction:
    if channel.transaction is None:
        raise ProtocolError(PRECONDITION_FAILED, "channel is not transactional")
    return channel.transaction


def commit(channel: Channel, method: Any) -> None:
    """Carries it out; `tx.commit-ok` says that it is on disk. Rejections and requeues take effect after that."""
    work = _transaction(channel).take()

    def committed(outcome: Outcome, now_ms: int) -> None:
        if outcome.error is None and outcome.refused:
            outcome = Outcome(error=next(iter(outcome.refused.values())))
        if outcome.error is None and channel.open:
            for index in outcome.unrouted:
                message, payload_max = work.messages[index], channel.output.payload_max
                channel.output.write(*return_frames(channel.number, message, payload_max=payload_max, now_ms=now_ms))
        finished(outcome, now_ms)

    def finished(outcome: Outcome, _now_ms: int) -> None:
        channel.free_consumers()
        for settled in work.settled.values():
            if outcome.error is not None:  # the channel closes, and all that it holds goes back
                channel.done("requeue", settled.consumer, (settled.offset,))
            else:
                how = None if settled.outcome == "ack" else settled.outcome
                channel.done(how, settled.consumer, (settled.offset,))
        channel.answered(method.index, outcome, lambda _value: channel.send(Tx.CommitOk))

    if work.messages or work.acknowledged():
        channel.waiting = True
        token = channel.output.expect(committed)
        settling = SettlingTransaction(settled=work.acknowledged())
        channel.output.emit(
            Publish(work.messages, token, transaction=settling, copied=work.copied, mandatory=work.mandatory)
        )
    else:
        finished(Outcome(), 0)


def rollback(channel: Channel, _method: Any) -> None:
    """Forgets the published messages. Messages acknowledged in it are unacknowledged again."""
    given_back = _transaction(channel).forget()
    channel.unacknowledged = dict(sorted((channel.unacknowledged | given_back).items()))
    channel.send(Tx.RollbackOk)
