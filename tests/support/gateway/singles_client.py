"""An MQTT client of a connection whose single messages take the short way."""

from random import Random
from types import SimpleNamespace

from adapters.mqtt import FACTORY
from adapters.mqtt.codec import encode
from adapters.mqtt.codec.packets import Connect, Publish
from adapters.mqtt.messages.options import Options
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Authenticate, Outcome
from gateway.port.sessions import OpenedSession, OpenSession
from gateway.runtime.connection import Connection
from gateway.runtime.endpoint import ListenerContext
from store.format.frame import LogOffset, Position
from tests.support.gateway.connection_rig import ConnectionHub, ConnectionTransport


class Awake:
    def __init__(self):
        self.slept = False
        self.held = []

    def holds(self, _reader, data):
        if self.slept:
            self.held.append(data)
        return self.slept

    def give_back(self, _reader):
        return b""


class MqttHub(ConnectionHub):
    """Lets everybody in, and writes down what goes which way."""

    def __init__(self):
        super().__init__()
        self.random = Random(1)
        self.pauses = Awake()
        self.singles = []
        self.principal = Principal(name="")
        self.reconnect_penalty = SimpleNamespace(note=lambda *_, **__: None)

    def call(self, endpoint, effect):
        match effect.request:
            case Authenticate():
                endpoint.principal = self.principal
                endpoint.completed(effect.token, Outcome(value=self.principal))
            case OpenSession():
                endpoint.has_session = True
                endpoint.completed(effect.token, Outcome(value=OpenedSession(present=False)))
            case _:
                endpoint.completed(effect.token, DONE)

    def publish_singles(self, singles):
        self.singles += singles


class SinglesClient:
    """An MQTT client of a connection, whose topic `t` is known already."""

    def __init__(self, version=5, **options):
        self.version = version
        self.hub = MqttHub()
        self.connection = Connection(self.hub, ListenerContext("mqtt", "mqtt", FACTORY, Options(**options)))
        self.transport = ConnectionTransport()
        self.connection.connection_made(self.transport)
        self.send(Connect(version=version, client_id="c1", keep_alive_s=10))
        self.send(Publish(topic="t", qos=1, packet_id=1))
        self.store()
        self.transport.written.clear()

    def send(self, *packets):
        self.connection.data_received(b"".join(encode(packet, self.version) for packet in packets))

    def publish(self, packet_id=2, topic="t", **fields):
        self.send(Publish(topic=topic, payload=b"x", qos=1, packet_id=packet_id, **fields))

    def store(self, outcome=DONE):
        """Ends all publications that took the general way."""
        published, self.hub.published = self.hub.published, []
        for effect, size_bytes in published:
            self.connection.published(effect.token, outcome, size_bytes)

    def acknowledge(self):
        """Notes that the single message is stored."""
        self.hub.turn.acknowledged([self.hub.singles.pop()], Position(LogOffset(7), 0))

    def fail(self, cause):
        _, single, size_bytes = self.hub.singles.pop()
        self.connection.failed(single, Refusal(cause, "no"), size_bytes)

    def said(self, *packets):
        """Returns whether the client was sent just that."""
        written = b"".join(self.transport.written)
        self.transport.written.clear()
        return written == b"".join(encode(packet, self.version) for packet in packets)

    @property
    def rests(self):
        return self.connection.outstanding_count == self.connection.outstanding_bytes == 0
