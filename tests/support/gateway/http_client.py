"""An HTTP client of a connection whose single messages take the short way."""

from adapters.http import FACTORY, HttpOptions
from gateway.domain.errors import Refusal
from gateway.port.adapter import Outcome
from gateway.runtime.connection import Connection
from gateway.runtime.endpoint import ListenerContext
from store.format.frame import LogOffset, Position
from tests.support.gateway.connection_rig import ConnectionTransport
from tests.support.gateway.singles_client import MqttHub
from tests.support.http.http_driver import Answer, parse_responses, request

EVENT = (("ce-specversion", "1.0"), ("ce-source", "//a/b"), ("ce-type", "t"), ("ce-subject", "site/1"))


def event(id_, *more, body=b"{}"):
    """Returns a request that publishes an event."""
    return request("POST", "/events", *EVENT, ("ce-id", id_), *more, body=body)


class HttpClient:
    """A client of a connection that has published an event already, so that others repeat it."""

    def __init__(self, **options):
        self.hub = MqttHub()
        self.connection = Connection(
            self.hub,
            ListenerContext("http", "http", FACTORY, HttpOptions(allowed_hosts=("gateway.example",), **options)),
        )
        self.transport = ConnectionTransport()
        self.connection.connection_made(self.transport)
        for id_ in ("zero", "one"):  # the first one asks who it is
            self.send(event(id_))
            self.publish(0)
        self.transport.written.clear()

    def send(self, *requests):
        """Hands over requests that are one read."""
        self.connection.data_received(b"".join(requests))

    def post(self, *ids):
        """Hands over events, a read for each."""
        for id_ in ids:
            self.send(event(id_))

    @property
    def in_flight(self):
        """Returns the ids of the single messages that are not stored yet."""
        return [single.message.id for _, single, _ in self.hub.singles]

    def store(self, *indexes, frame=7):
        """Notes that single messages are stored, in one frame."""
        stored = [self.hub.singles[index] for index in indexes]
        self.hub.singles = [one for one in self.hub.singles if one not in stored]
        self.hub.turn.acknowledged(stored, Position(LogOffset(frame), 0))

    def fail(self, index, cause):
        """Notes that a single message is not stored."""
        connection, single, size_bytes = self.hub.singles.pop(index)
        connection.failed(single, Refusal(cause, "no"), size_bytes)

    def publish(self, index, *, frame=5, refused=None):
        """Ends a publication that took the general way."""
        effect, size_bytes = self.hub.published.pop(index)
        outcome = Outcome(first=Position(LogOffset(frame), 0)) if refused is None else Outcome(refused={0: refused})
        self.connection.published(effect.token, outcome, size_bytes)

    def said(self) -> list[Answer]:
        """Returns the responses that have come since the last call."""
        written = b"".join(self.transport.written)
        self.transport.written.clear()
        return parse_responses(written)

    @property
    def rests(self):
        """Returns whether nothing is in flight."""
        return self.connection.outstanding_count == self.connection.outstanding_bytes == 0
