"""CoAP over WebSocket (RFC 8323, 4): the handshake and the messages around a connection of CoAP over TCP.

Imported by: coap.
Imports: coap.messages, coap.stream, websocket, gateway.port, store.base.
"""

from adapters.coap.stream import CoapConnection, StreamsContext
from adapters.coap.websocket.framing import CoapFraming, CoapHandshake, server_protocol
from adapters.websocket.connection import WebSocketConnection
from gateway.port.adapter import Adapter, ConnectionInfo

__all__ = ["in_websocket"]


def in_websocket(connection: CoapConnection, info: ConnectionInfo, context: StreamsContext) -> Adapter:
    """Returns a connection that speaks through a WebSocket."""
    protocol = server_protocol(context)
    handshake = CoapHandshake(protocol, context.settings, local=info.loopback)
    return WebSocketConnection(connection, handshake, CoapFraming(protocol, context, connection), info.forwarding)
