"""HTTP/1.1 and HTTP/2, carrying CloudEvents, plain messages and server-sent events.

Imported by: none.
Imports: cloudevents, websocket, gateway.domain, gateway.port, store.api, store.base, store.format.
"""

from adapters.http.connection import HttpConnection
from adapters.http.handlers.sinks import event_attributes, sink_request
from adapters.http.wire.options import HttpOptions
from adapters.http.wire.receive_budget import ReceiveBudget
from gateway.port.adapter import ConnectionInfo, Listener, Random

__all__ = ["FACTORY", "HttpConnection", "HttpFactory", "HttpOptions"]


class HttpFactory:
    """The entry point of HTTP (`gateway.port.adapter.AdapterFactory`, `gateway.port.push.SinkFactory`)."""

    listeners = (
        Listener(
            name="http",
            port=8080,
            transport="tcp",
            tls_port=8443,
            alpn=("h2", "http/1.1"),
            summary="HTTP/1.1 and HTTP/2: CloudEvents, /topics, server-sent events",
        ),
    )
    options = HttpOptions
    event_attributes = staticmethod(event_attributes)
    sink_request = staticmethod(sink_request)

    def __init__(self) -> None:
        self.arriving = ReceiveBudget()

    def connect(self, info: ConnectionInfo, options: HttpOptions, *, random: Random) -> HttpConnection:
        """Returns the state machine of a new connection."""
        return HttpConnection(info, options, self.arriving, random)


FACTORY = HttpFactory()
