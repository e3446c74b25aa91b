"""Requests as their options say them: addresses, messages, blocks of bodies, and the options of the listener.

Imported by: coap.*.
Imports: cloudevents, coap.codec, websocket, gateway.domain, gateway.port, store.api.
"""
