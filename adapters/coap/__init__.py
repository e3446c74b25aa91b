"""CoAP (RFC 7252) over UDP, with bodies in blocks (RFC 7959) and the list of addresses (RFC 6690).

A path below `/t/` or `/ps/` is an address: POST and PUT publish to it, GET reads its last value, DELETE takes that
away. POST is answered 2.01, PUT 2.01 or 2.04, DELETE 2.02, each when the message is durable. Unless `bare_paths` is
off, any other path is an address as it stands, `/.well-known/` excepted. `adapters.coap.messages.mapping` makes a
message of options.

Imported by: none.
Imports: cloudevents, websocket, gateway.domain, gateway.port, store.api, store.base.
"""

from adapters.coap.factory import FACTORY

__all__ = ["FACTORY"]
