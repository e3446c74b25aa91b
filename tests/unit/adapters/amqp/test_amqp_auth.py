"""An AMQP client authenticates, and its connection ends when the credential does."""

import pytest
from pamqp import commands

from adapters.amqp import FACTORY
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Close, ConnectionInfo, Outcome
from tests.support.amqp.amqp_peer import HEADER, PROPERTIES, Peer

CERTIFICATE = {"subject": ((("commonName", "device-7"),),)}


class Certified(Peer):
    """A client that has shown a certificate."""

    def __init__(self):
        super().__init__()
        info = ConnectionInfo(peer=("10.0.0.1", 1), local=("10.0.0.2", 5671), secure=True, certificate=CERTIFICATE)
        self.conn = FACTORY.connect(info, self.conn.options, random=self.conn.random)


def started(peer, mechanism, response):
    """Returns what the gateway is asked, and the mechanisms that were offered."""
    peer.feed(HEADER)
    start = peer.one(commands.Connection.Start)
    effects = peer.send(commands.Connection.StartOk(PROPERTIES, mechanism, response, "en_US"))
    asked = [effect.request for effect in effects if hasattr(effect, "request")]
    return asked, start.mechanisms


def test_a_certificate_is_offered_where_there_is_one():
    asked, offered = started(Certified(), "EXTERNAL", "")
    assert offered == "PLAIN AMQPLAIN EXTERNAL"
    assert asked == [Authenticate(mechanism="external")]
    asked, _ = started(Certified(), "EXTERNAL", "device-7")
    assert asked == [Authenticate(mechanism="external", username="device-7")]
    asked, _ = started(Certified(), "PLAIN", "\0u\0p")
    assert asked == [Authenticate(mechanism="password", username="u", password=b"p")]


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "PLA", "PLAIN AMQPLAIN", "", "SCRAM-SHA-256", "plain"])
def test_a_mechanism_that_was_not_offered(mechanism):
    peer = Peer()
    asked, offered = started(peer, mechanism, "")
    assert (asked, offered) == ([], "PLAIN AMQPLAIN")
    assert peer.one(commands.Connection.Close).reply_code == 403


def test_a_certificate_that_is_not_enough():
    peer = Certified()
    peer.feed(HEADER)
    peer.one(commands.Connection.Start)
    (asked,) = peer.send(commands.Connection.StartOk(PROPERTIES, "EXTERNAL", "other", "en_US"))
    refusal = Refusal(Cause.UNAUTHENTICATED, "there is no certificate in this name")
    peer.effects += peer.conn.completed(asked.token, Outcome(error=refusal), now_ms=peer.now_ms)
    closed = peer.one(commands.Connection.Close)
    why = "Login was refused using authentication mechanism EXTERNAL: there is no certificate in this name"
    assert (closed.reply_code, closed.reply_text) == (403, f"ACCESS_REFUSED - {why}")


def test_a_connection_ends_when_its_token_does():
    peer = Peer()
    peer.open(principal=Principal(name="u", expires_at_ms=peer.now_ms + 60_000))
    assert peer.conn.deadline_ms() == peer.now_ms + 60_000
    peer.tick(59_999)
    assert peer.frames() == []
    peer.tick(1)
    closed = peer.one(commands.Connection.Close)
    assert (closed.reply_code, closed.reply_text) == (320, "CONNECTION_FORCED - the credentials have expired")
    peer.tick(0)
    assert peer.frames() == []
    peer.send(commands.Connection.CloseOk())
    assert any(isinstance(effect, Close) for effect in peer.effects)


def renew(peer, **outcome):
    """Sends a new secret, and answers the request that follows from it."""
    (asked,) = peer.send(commands.Connection.UpdateSecret(new_secret="new", reason="because"))
    assert (asked.request.username, asked.request.password) == ("guest", b"new")
    peer.effects += peer.conn.completed(asked.token, Outcome(**outcome), now_ms=peer.now_ms)


def test_a_new_secret_lets_a_connection_live_longer():
    peer = Peer()
    peer.open(principal=Principal(name="u", expires_at_ms=peer.now_ms + 60_000))
    renew(peer, value=Principal(name="u", expires_at_ms=peer.now_ms + 90_000))
    peer.one(commands.Connection.UpdateSecretOk)
    assert peer.conn.deadline_ms() == peer.now_ms + 90_000


@pytest.mark.parametrize(
    "outcome", [{"value": Principal(name="other")}, {"error": Refusal(Cause.UNAUTHENTICATED, "wrong name or password")}]
)
def test_a_new_secret_of_nobody_or_somebody_else_closes(outcome):
    peer = Peer()
    peer.open(principal=Principal(name="u", expires_at_ms=peer.now_ms + 60_000))
    renew(peer, **outcome)
    closed = peer.one(commands.Connection.Close)
    assert (closed.reply_code, closed.class_id, closed.method_id) == (530, 10, 70)


def test_credentials_that_do_not_expire_need_no_new_secret():
    peer = Peer().open(principal=Principal(name="u"))
    assert not peer.send(commands.Connection.UpdateSecret(new_secret="new", reason="because"))
    peer.one(commands.Connection.UpdateSecretOk)


def test_the_device_that_a_token_claims_and_the_user_who_bears_it():
    peer = Peer().open(principal=Principal(name="fleet", device="d7"))
    peer.publish("amq.topic", "a", b"x")
    peer.publish("amq.topic", "a", b"x", user_id="fleet")
    peer.publish("amq.topic", "a", b"x", user_id="d7")
    assert [message.device for message in peer.published()] == ["d7"] * 3
    peer.publish("amq.topic", "a", b"x", user_id="other")
    assert peer.one(commands.Channel.Close).reply_code == 406
