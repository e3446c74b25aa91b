"""The wire format of CoAP over UDP: datagrams to packets and back, its numbers, and its Content-Formats.

Imported by: coap.*.
Imports: gateway.domain.
"""
