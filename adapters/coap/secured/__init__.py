"""Endpoints of CoAP behind a security layer: one for each principal, on one socket.

Imported by: coap, coap.oscore.
Imports: coap.endpoint, coap.messages, gateway.domain, gateway.port.
"""
