"""Exchanges of one socket (RFC 7252, 4 and 5): duplicates, responses, retransmission, and Echo (RFC 9175).

Imported by: coap.endpoint, coap.observe, coap.oscore, coap.reading, coap.topics.
Imports: coap.codec, coap.messages, gateway.domain, gateway.port.
"""
