"""HTTP/1.1 and HTTP/2 on the wire: requests and their bodies in, responses out, limits on each peer.

Imported by: http, http.handlers, http.handlers.parsing.
Imports: cloudevents, websocket, gateway.domain, gateway.port, store.base.
"""
