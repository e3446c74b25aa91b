"""Endpoints of CoAP behind a security layer: one for each principal, on one socket.

Imported by: coap, coap.oscore.
Imports: coap, gateway.domain, gateway.port.
"""
