"""Observe (RFC 7641): the observers of addresses and the notifications that they are sent.

The endpoint of CoAP alone imports this room. It imports the rest of `adapters.coap` except for the endpoint.
"""

from adapters.coap.observe.observers import Observers

__all__ = ["Observers"]
