"""The class tx: what a channel has asked for by its commit, and what becomes of it when that is refused."""

import pytest
from pamqp.commands import Basic, Channel, Confirm, Tx

from gateway.domain.errors import Cause, Refusal
from gateway.port.adapter import Publish, SettleLeased
from store.api.message import Message
from tests.support.amqp.amqp_peer import Peer


@pytest.fixture
def peer():
    peer = Peer(transaction_bytes_max=100, transaction_count_max=3).open()
    peer.send(Tx.Select(), channel=1)
    peer.one(Tx.SelectOk)
    return peer


def held(peer, count=3):
    """Begins a consumer, and delivers some messages to it."""
    consumer = peer.consume()
    peer.deliver(consumer, [Message("$amqp//q", b"x")] * count)
    peer.methods()
    return consumer


def commit(peer):
    """Returns the `Publish` that a commit asks for."""
    (effect,) = [effect for effect in peer.send(Tx.Commit(), channel=1) if isinstance(effect, Publish)]
    return effect


def test_a_commit_is_one_effect_and_its_answer_follows_the_outcome(peer):
    held(peer)
    peer.publish("x", "k", b"1")
    peer.publish("x", "k", b"2")
    peer.send(Basic.Ack(delivery_tag=2, multiple=True), channel=1)
    assert not [effect for effect in peer.effects if isinstance(effect, Publish | SettleLeased)]
    effect = commit(peer)
    assert [message.body for message in effect.messages] == [b"1", b"2"]
    assert [list(offsets) for _, offsets in effect.transaction.settled] == [[0, 1]]
    assert peer.methods() == []
    peer.complete(effect)
    peer.one(Tx.CommitOk)
    assert not [effect for effect in peer.effects if isinstance(effect, SettleLeased)]


def test_what_is_rejected_and_given_back_follows_the_commit(peer):
    held(peer)
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    peer.send(Basic.Nack(delivery_tag=2, requeue=False), channel=1)
    peer.send(Basic.Nack(delivery_tag=3, requeue=True), channel=1)
    (settle,) = [one for one in peer.complete(commit(peer)) if isinstance(one, SettleLeased)]
    assert {one.outcome: list(one.offsets) for one in settle.dispositions} == {"reject": [1], "requeue": [2]}


def test_recover_gives_back_at_once_what_the_transaction_has_not_settled(peer):
    held(peer)
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    (settle,) = [one for one in peer.send(Basic.Recover(requeue=True), channel=1) if isinstance(one, SettleLeased)]
    assert [(one.outcome, list(one.offsets)) for one in settle.dispositions] == [("requeue", [1, 2])]
    peer.one(Basic.RecoverOk)
    assert [list(offsets) for _, offsets in commit(peer).transaction.settled] == [[0]]


@pytest.mark.parametrize("whole", [True, False])
def test_a_refused_commit_closes_the_channel_and_gives_back_what_it_holds(peer, whole):
    held(peer)
    peer.publish("x", "k", b"1")
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    effect, refusal = commit(peer), Refusal(Cause.FORBIDDEN, "not allowed")
    after = peer.refuse(effect, refusal) if whole else peer.complete(effect, refused={0: refusal})
    close = next(one for one in peer.methods() if isinstance(one, Channel.Close))
    assert (close.reply_code, close.class_id, close.method_id) == (403, 90, 20)
    (settle,) = [one for one in after if isinstance(one, SettleLeased)]
    assert {one.outcome: sorted(one.offsets) for one in settle.dispositions} == {"requeue": [0, 1, 2]}


def test_a_channel_that_ends_gives_back_what_its_transaction_has_acknowledged(peer):
    held(peer, 2)
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    (settle,) = [one for one in peer.send(Channel.Close(200, "", 0, 0), channel=1) if isinstance(one, SettleLeased)]
    assert {one.outcome: sorted(one.offsets) for one in settle.dispositions} == {"requeue": [0, 1]}


def test_nothing_that_a_transaction_acknowledges_makes_room_before_its_commit():
    peer = Peer().open()
    peer.send(Tx.Select(), Basic.Qos(prefetch_count=1), channel=1)
    peer.methods()
    consumer = held(peer, 1)
    peer.send(Basic.Ack(delivery_tag=1), channel=1)
    assert peer.deliver(consumer, [Message("$amqp//q", b"y")], first=1) == 0
    peer.complete(commit(peer))
    assert peer.deliver(consumer, [Message("$amqp//q", b"y")], first=1) == 1


@pytest.mark.parametrize("bodies", [[b"x" * 60] * 2, [b""] * 4])
def test_a_transaction_has_limits(peer, bodies):
    for body in bodies:
        peer.publish("x", "k", body)
    close = peer.one(Channel.Close)
    assert close.reply_code == 406
    assert "adapters.amqp.transaction" in close.reply_text
    assert peer.conn.transaction_bytes <= 60


def test_the_limit_is_that_of_all_channels_though_each_has_one_message():
    peer = Peer(transaction_bytes_max=100).open(channels=3)
    for number in (1, 2, 3):
        peer.send(Tx.Select(), channel=number)
    peer.frames()
    peer.publish("x", "k", b"x" * 150, channel=1)  # one alone may have more
    peer.publish("x", "k", b"x", channel=2)
    assert peer.one(Channel.Close).reply_code == 406
    peer.publish("x", "k", b"", channel=3)
    assert peer.conn.transaction_bytes == 150


def test_properties_take_room_of_a_transaction_too(peer, monkeypatch):
    """They held a hundred times the limit, of which empty bodies took nothing."""
    monkeypatch.setattr("adapters.amqp.transactions.HEADS_BYTES_MAX", 20_000)
    headers = {f"{number:03}": True for number in range(100)}
    peer.publish("x", "k", b"", headers=headers)
    assert peer.conn.transaction_heads_bytes > 8_000
    peer.publish("x", "k", b"", headers=headers)
    peer.publish("x", "k", b"", headers=headers)
    assert peer.one(Channel.Close).reply_code == 406
    assert peer.conn.transaction_heads_bytes == 0


def test_the_room_of_a_transaction_is_there_again_when_it_ends(peer):
    for end in (Tx.Rollback(), Tx.Commit(), Tx.Rollback()):
        peer.publish("x", "k", b"x" * 100)
        for effect in peer.send(end, channel=1):
            peer.complete(effect)
    assert [type(one) for one in peer.methods()] == [Tx.RollbackOk, Tx.CommitOk, Tx.RollbackOk]
    peer.publish("x", "k", b"x" * 100)
    peer.send(Channel.Close(200, "", 0, 0), channel=1)
    peer.one(Channel.CloseOk)
    assert peer.conn.transaction_bytes == 0


def test_mandatory_messages_of_a_transaction_are_returned_before_its_answer(peer):
    peer.publish("x", "k", b"1", mandatory=True)
    peer.complete(commit(peer), unrouted=[0])
    assert [type(one) for one in peer.methods() if isinstance(one, Basic.Return | Tx.CommitOk)] == [
        Basic.Return,
        Tx.CommitOk,
    ]


def test_a_channel_with_a_transaction_has_no_confirms(peer):
    peer.send(Confirm.Select(), channel=1)
    assert peer.one(Channel.Close).reply_code == 406
