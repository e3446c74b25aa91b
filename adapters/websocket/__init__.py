"""WebSocket (RFC 6455) around the connections of any protocol: its stages and its end.

Each protocol brings its handshake and its framing, which know the content of its frames (`Handshake`, `Framing`).

Imported by: coap, http, mqtt.
Imports: gateway.domain, gateway.port.
"""
