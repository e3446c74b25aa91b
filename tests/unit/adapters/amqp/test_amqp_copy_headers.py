"""The headers CC and BCC: what they make of a message, and what is refused."""

import pytest
from pamqp.commands import Channel, Tx

from adapters.amqp.codec.copies import BCC, CC, COPIES_COUNT_MAX
from adapters.amqp.codec.properties import properties_of
from adapters.amqp.codec.wire import read_table
from tests.support.amqp.amqp_peer import Peer

TOO_MANY = [f"{n}" for n in range(COPIES_COUNT_MAX + 1)]


def test_a_message_is_routed_by_all_keys_and_says_nothing_of_bcc():
    peer = Peer().open()
    (effect,) = peer.publish("x", "a", b"1", headers={CC: ["b", "a"], BCC: ["c.d", "b"], "h": "1"})
    (message,) = effect.messages
    assert effect.copied
    assert message.address == "$amqp/x/a"
    assert message.native["amqp"]["copies"] == ["$amqp/x/b", "$amqp/x/c/d"]
    raw = properties_of(message, now_ms=0)
    assert read_table(raw, 2)[0] == {CC: ["b", "a"], "h": "1"}
    assert b"c.d" not in raw
    assert "c.d" not in str(message.native["amqp"]["shown"])


def test_what_is_published_without_them_is_not_copied():
    peer = Peer().open()
    (effect,) = peer.publish("x", "a", b"1", headers={"cc": ["b"]})
    assert not effect.copied


def test_a_transaction_knows_that_messages_have_more_keys():
    peer = Peer().open()
    peer.send(Tx.Select(), channel=1)
    for headers, copied in (({CC: ["b"]}, True), ({}, False)):
        peer.publish("x", "a", b"1", headers=headers)
        (effect,) = peer.send(Tx.Commit(), channel=1)
        assert effect.copied is copied
        peer.complete(effect)


@pytest.mark.parametrize(
    "headers", [{CC: "b"}, {BCC: {}}, {CC: None}, {CC: [f"{n}" for n in range(COPIES_COUNT_MAX + 1)]}]
)
def test_what_they_may_not_be(headers):
    peer = Peer().open(frame_max=131_072)
    peer.publish("x", "a", b"1", headers=headers)
    close = peer.one(Channel.Close)
    assert (close.reply_code, close.class_id, close.method_id) == (406, 60, 40)
