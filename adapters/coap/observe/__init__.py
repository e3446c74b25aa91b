"""Observe (RFC 7641): the observers of addresses and the notifications that they are sent.

Imported by: coap.endpoint.
Imports: coap.codec, coap.exchanges, coap.messages, coap.reading, gateway.domain, gateway.port, store.api.
"""

from adapters.coap.observe.observers import Observers

__all__ = ["Observers"]
