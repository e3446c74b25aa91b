"""WebSocket (RFC 6455) around the connections of any protocol: its stages and its end.

Each protocol brings its handshake and its framing, which know what is in its frames (`Handshake`, `Framing`).

Imported by: coap, http, mqtt.
Imports: gateway.domain, gateway.port.
"""
