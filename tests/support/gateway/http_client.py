"""An HTTP client of a connection whose single messages take the short way."""

import socket

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


class ListTransport(ConnectionTransport):
    """Keeps what is written, all of it by the transport itself, as with TLS."""

    plain = None

    def taken(self) -> bytes:
        """Returns what was written since the last call."""
        written = b"".join(self.written)
        self.written.clear()
        return written

    def pause(self):
        """Makes the peer read no more."""
        self.protocol.pause_writing()

    def resume(self):
        """Makes the peer read on."""
        self.protocol.resume_writing()

    def lose(self):
        """Makes the peer go away."""
        self.protocol.connection_lost(None)

    def free(self):
        """Lets go of the sockets."""


class SocketTransport(ListTransport):
    """Has a socket that answers are written to directly while it is open and its peer reads, as the poller's are."""

    def __init__(self):
        super().__init__()
        self._ours, self._peer = socket.socketpair()
        self._ours.setblocking(False)
        self._peer.setblocking(False)
        self.plain, self.writable_number = self, self._ours.fileno()

    def write(self, data):
        """Writes to the socket that others are written to directly, so that their order shows."""
        assert self._ours.send(data) == len(data)

    def wrote(self, _data, taken):
        """See `gateway.runtime.turn.PlainSocket`."""
        raise AssertionError(f"the socket took {taken} bytes")

    def taken(self):
        """Returns what the peer has received since the last call."""
        received = b""
        try:
            while data := self._peer.recv(1 << 16):
                received += data
        except BlockingIOError:
            pass
        return received

    def pause(self):
        """Makes the peer read no more."""
        self.writable_number = -1
        super().pause()

    def resume(self):
        """Makes the peer read on."""
        self.writable_number = self._ours.fileno()
        super().resume()

    def lose(self):
        """Makes the peer go away."""
        self.writable_number = -1
        super().lose()

    def write_eof(self):
        """Ends the output."""
        self.writable_number = -1
        super().write_eof()

    def close(self):
        """Closes."""
        self.writable_number = -1
        super().close()

    def abort(self):
        """Closes, whatever is kept."""
        self.writable_number = -1
        super().abort()

    def free(self):
        """Lets go of the sockets."""
        self._ours.close()
        self._peer.close()


class HttpClient:
    """A client of a connection that has published an event already, so that others repeat it.

    `plain`: its answers are written to its socket directly; to be closed.
    """

    def __init__(self, *, plain=False, **options):
        self.hub = MqttHub()
        self.connection = Connection(
            self.hub,
            ListenerContext("http", "http", FACTORY, HttpOptions(allowed_hosts=("gateway.example",), **options)),
        )
        self.transport = SocketTransport() if plain else ListTransport()
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)
        self.connection.plain = self.transport.plain
        for id_ in ("zero", "one"):  # the first one asks who it is
            self.send(event(id_))
            self.publish(0)
        self.transport.taken()

    def close(self):
        """Lets go of its sockets."""
        self.transport.free()

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
        return parse_responses(self.transport.taken())

    @property
    def rests(self):
        """Returns whether nothing is in flight."""
        return self.connection.outstanding_count == self.connection.outstanding_bytes == 0
