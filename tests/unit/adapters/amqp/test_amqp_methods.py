"""Every class and method of AMQP 0-9-1, and RabbitMQ's, as a client sends it on a connection that is open.

A row has the methods that are answered, or the reply code that closes the channel or the connection. A method that only
a server sends closes the connection (503), and so does, on channel 0, one of the handshake, which is over (504).
"""

import warnings
from typing import Any

import pytest
from pamqp import commands
from pamqp.commands import INDEX_MAPPING, Basic, Channel, Confirm, Connection, Exchange, Queue, Tx

from gateway.port import queues as port
from gateway.port.adapter import Authenticate, Call, Consume, Leased, Principal, Publish
from store.api.message import Message
from tests.support.amqp.amqp_peer import Peer, encoded, publish

INVALID = "connection 503"
UNEXPECTED = "connection 504"


def _recover_async() -> Any:
    """Calls the deprecated method, of which pamqp warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return Basic.RecoverAsync(requeue=True)


TABLE: dict[str, tuple[Any, tuple[str, ...]]] = {
    # ---- connection, on channel 0
    "Connection.Start": (Connection.Start(), (UNEXPECTED,)),
    "Connection.StartOk": (Connection.StartOk(response="\0guest\0guest", locale="en_US"), (UNEXPECTED,)),
    "Connection.Secure": (Connection.Secure("x"), (UNEXPECTED,)),
    "Connection.SecureOk": (Connection.SecureOk("x"), (UNEXPECTED,)),
    "Connection.Tune": (Connection.Tune(), (UNEXPECTED,)),
    "Connection.TuneOk": (Connection.TuneOk(), (UNEXPECTED,)),
    "Connection.Open": (Connection.Open(), (UNEXPECTED,)),
    "Connection.OpenOk": (Connection.OpenOk(), (UNEXPECTED,)),
    "Connection.Close": (Connection.Close(200, "", 0, 0), ("Connection.CloseOk",)),
    "Connection.CloseOk": (Connection.CloseOk(), (UNEXPECTED,)),
    "Connection.Blocked": (Connection.Blocked(), (UNEXPECTED,)),
    "Connection.Unblocked": (Connection.Unblocked(), (UNEXPECTED,)),
    "Connection.UpdateSecret": (Connection.UpdateSecret("new", "why"), ("Connection.UpdateSecretOk",)),
    "Connection.UpdateSecretOk": (Connection.UpdateSecretOk(), (UNEXPECTED,)),
    # ---- channel
    "Channel.Open": (Channel.Open(), ("connection 504",)),
    "Channel.OpenOk": (Channel.OpenOk(), (INVALID,)),
    "Channel.Flow": (Channel.Flow(active=True), ("Channel.FlowOk",)),
    "Channel.FlowOk": (Channel.FlowOk(active=True), ()),
    "Channel.Close": (Channel.Close(200, "", 0, 0), ("Channel.CloseOk",)),
    "Channel.CloseOk": (Channel.CloseOk(), (INVALID,)),
    # ---- exchange
    "Exchange.Declare": (Exchange.Declare(exchange="x", exchange_type="topic"), ("Exchange.DeclareOk",)),
    "Exchange.DeclareOk": (Exchange.DeclareOk(), (INVALID,)),
    "Exchange.Delete": (Exchange.Delete(exchange="x"), ("Exchange.DeleteOk",)),
    "Exchange.DeleteOk": (Exchange.DeleteOk(), (INVALID,)),
    "Exchange.Bind": (Exchange.Bind(destination="x", source="y"), ("Exchange.BindOk",)),
    "Exchange.BindOk": (Exchange.BindOk(), (INVALID,)),
    "Exchange.Unbind": (Exchange.Unbind(destination="x", source="y"), ("Exchange.UnbindOk",)),
    "Exchange.UnbindOk": (Exchange.UnbindOk(), (INVALID,)),
    # ---- queue
    "Queue.Declare": (Queue.Declare(queue="q"), ("Queue.DeclareOk",)),
    "Queue.DeclareOk": (Queue.DeclareOk("q", 0, 0), (INVALID,)),
    "Queue.Bind": (Queue.Bind(queue="q", exchange="x"), ("Queue.BindOk",)),
    "Queue.BindOk": (Queue.BindOk(), (INVALID,)),
    "Queue.Unbind": (Queue.Unbind(queue="q", exchange="x"), ("Queue.UnbindOk",)),
    "Queue.UnbindOk": (Queue.UnbindOk(), (INVALID,)),
    "Queue.Purge": (Queue.Purge(queue="q"), ("Queue.PurgeOk",)),
    "Queue.PurgeOk": (Queue.PurgeOk(0), (INVALID,)),
    "Queue.Delete": (Queue.Delete(queue="q"), ("Queue.DeleteOk",)),
    "Queue.DeleteOk": (Queue.DeleteOk(0), (INVALID,)),
    # ---- basic
    "Basic.Qos": (Basic.Qos(prefetch_count=1), ("Basic.QosOk",)),
    "Basic.QosOk": (Basic.QosOk(), (INVALID,)),
    "Basic.Consume": (Basic.Consume(queue="q"), ("Basic.ConsumeOk",)),
    "Basic.ConsumeOk": (Basic.ConsumeOk("c"), (INVALID,)),
    "Basic.Cancel": (Basic.Cancel("c"), ("Basic.CancelOk",)),
    "Basic.CancelOk": (Basic.CancelOk("c"), ()),
    "Basic.Publish": (Basic.Publish(exchange="x", routing_key="k"), ()),
    "Basic.Return": (Basic.Return(312, "", "", ""), (INVALID,)),
    "Basic.Deliver": (Basic.Deliver("c", 1, False, "", ""), (INVALID,)),
    "Basic.Get": (Basic.Get(queue="q"), ("Basic.GetEmpty",)),
    "Basic.GetOk": (Basic.GetOk(1, False, "", "", 0), (INVALID,)),
    "Basic.GetEmpty": (Basic.GetEmpty(), (INVALID,)),
    "Basic.Ack": (Basic.Ack(delivery_tag=1), ("channel 406",)),
    "Basic.Reject": (Basic.Reject(delivery_tag=1), ("channel 406",)),
    "Basic.Nack": (Basic.Nack(delivery_tag=1), ("channel 406",)),
    "Basic.Recover": (Basic.Recover(requeue=True), ("Basic.RecoverOk",)),
    "Basic.RecoverOk": (Basic.RecoverOk(), (INVALID,)),
    "Basic.RecoverAsync": (_recover_async(), ()),
    # ---- tx and confirm
    "Tx.Select": (Tx.Select(), ("Tx.SelectOk",)),
    "Tx.SelectOk": (Tx.SelectOk(), (INVALID,)),
    "Tx.Commit": (Tx.Commit(), ("channel 406",)),
    "Tx.CommitOk": (Tx.CommitOk(), (INVALID,)),
    "Tx.Rollback": (Tx.Rollback(), ("channel 406",)),
    "Tx.RollbackOk": (Tx.RollbackOk(), (INVALID,)),
    "Confirm.Select": (Confirm.Select(), ("Confirm.SelectOk",)),
    "Confirm.SelectOk": (Confirm.SelectOk(), (INVALID,)),
}
AS_RABBITMQ: list[tuple[Any, str]] = [  # methods whose flags or names mean to RabbitMQ what they mean here
    (Basic.Consume(queue="q", no_local=True), "Basic.ConsumeOk"),  # which no broker keeps apart
    (Queue.Declare(queue="amq.rabbitmq.reply-to"), "Queue.DeclareOk"),
    (Queue.Declare(queue="amq.rabbitmq.reply-to.x", exclusive=True), "Queue.DeclareOk"),
]
NOT_THERE: list[tuple[Any, str]] = [  # methods that we do not have, and RabbitMQ's words: 1.2, not-implemented
    (Basic.Publish(exchange="x", immediate=True), "immediate=true"),
    (Basic.Qos(prefetch_size=1), "prefetch_size!=0 (1)"),
    (Basic.Recover(requeue=False), "requeue=false"),
]


def answer_of(effect: Any) -> Any:
    """Returns the gateway's answer, where all goes well and every queue is empty."""
    match effect:
        case Call(request=Authenticate()):
            return Principal(name="guest")
        case Call(request=port.DeclareQueue(name=name)):
            return port.QueueInfo(name=name, messages=0, consumers=0)
        case Call(request=port.PurgeQueue() | port.DeleteQueue()):
            return 0
    return None


def answered(peer: Peer) -> tuple[str, ...]:
    found = []
    for method in peer.methods():
        if isinstance(method, Channel.Close | Connection.Close):
            found.append(f"{type(method).__qualname__.split('.')[0].lower()} {method.reply_code}")
        else:
            found.append(type(method).__qualname__)
    return tuple(found)


def send(peer: Peer, method: Any) -> tuple[str, ...]:
    waiting = list(peer.send(method, channel=0 if method.name.startswith("Connection.") else 1))
    while waiting:
        effect = waiting.pop(0)
        if isinstance(effect, Call | Consume | Publish):
            waiting += peer.complete(effect, answer_of(effect))
    return answered(peer)


def test_every_method_has_a_row():
    assert TABLE.keys() == {method.name for method in INDEX_MAPPING.values()}


@pytest.mark.parametrize("name", TABLE)
def test_what_a_method_is_answered(name):
    method, expected = TABLE[name]
    assert send(Peer().open(), method) == expected


@pytest.mark.parametrize(("method", "expected"), AS_RABBITMQ)
def test_what_rabbitmq_passes_over_is_passed_over(method, expected):
    assert send(Peer().open(), method) == (expected,)


@pytest.mark.parametrize(("method", "why"), NOT_THERE)
def test_what_is_not_there_is_said_to_be_not_implemented(method, why):
    peer = Peer().open()
    peer.send(method, channel=1)
    close = peer.one(Connection.Close)
    assert (close.reply_code, close.reply_text) == (540, f"NOT_IMPLEMENTED - {why}")


def test_line_ends_in_names_mean_nothing_as_in_rabbitmq():
    peer = Peer().open()
    (asked,) = peer.feed(encoded(1, Queue.Declare(queue="a@b,,", durable=True)).replace(b"a@b,,", b"a\nb\r\n"))
    assert asked.request.name == "ab"
    peer.complete(asked, answer_of(asked))
    assert peer.one(Queue.DeclareOk).queue == "ab"
    bind = encoded(1, Queue.Bind(queue="ab@", exchange="x,,", routing_key="k\n"))
    (asked,) = peer.feed(bind.replace(b"ab@", b"ab\n").replace(b"x,,", b"x\r\n"))
    assert (asked.request.queue, asked.request.exchange, asked.request.routing_key) == ("ab", "x", "k\n")


@pytest.mark.parametrize("method", [Basic.Ack, Basic.Reject, Basic.Nack])
def test_what_is_delivered_is_settled_without_an_answer(method):
    peer = Peer().open()
    assert peer.deliver(peer.consume(), [Message("$amqp//q", b"x")]) == 1
    peer.methods()
    assert send(peer, method(delivery_tag=1)) == ()


def test_a_message_is_delivered_returned_and_confirmed():
    peer = Peer().open().confirming()
    (effect,) = peer.feed(publish(1, "x", "k", b"1", mandatory=True))
    peer.complete(effect, unrouted=[0])
    assert answered(peer)[0] == "Basic.Return"
    assert peer.deliver(peer.consume(), [Message("$amqp//q", b"x")]) == 1
    assert answered(peer)[0] == "Basic.Deliver"
    (asked,) = peer.send(commands.Basic.Get(queue="q"), channel=1)
    peer.complete(asked, port.Got(leased=Leased(0, [Message("$amqp//q", b"x")], [1], [0]), remaining=0))
    assert answered(peer)[0] == "Basic.GetOk"


def test_on_a_channel_that_is_not_open_nothing_but_its_open_is_taken():
    for name, (method, _) in TABLE.items():
        if not name.startswith(("Connection.", "Channel.Open")):
            peer = Peer().open(channels=0)
            peer.send(method, channel=1)
            assert answered(peer) == ("connection 504",), name


@pytest.mark.parametrize("last", [b"V", b"F\0\0\0\0", b"A\0\0\0\0"], ids=["void", "table", "array"])
def test_an_argument_that_comes_twice_is_the_last_one_though_the_first_is_a_timestamp(last):
    """It raised a TypeError, which ended the connection without a word and filled the log."""
    fields = b"\x01xT" + bytes(8) + b"\x01x" + last
    method = b"\x00\x3c\x00\x14" + bytes(2) + b"\x01q\x01c\0" + len(fields).to_bytes(4, "big") + fields
    peer = Peer().open()
    peer.feed(b"\x01\x00\x01" + len(method).to_bytes(4, "big") + method + b"\xce")
    assert not [one for one in peer.methods() if isinstance(one, Connection.Close)]
