"""CoAP over WebSocket (RFC 8323, 4): the handshake and the messages around a connection of CoAP over TCP.

Imported by: coap.
Imports: coap.stream, gateway.port, store.base.
"""

from adapters.coap.websocket.connection import CoapWebSocket

__all__ = ["CoapWebSocket"]
