"""The endpoint: the state machine of one UDP socket, with the parts that each kind of request takes.

Imported by: coap, coap.oscore, coap.secured, coap.stream.
Imports: coap.codec, coap.exchanges, coap.messages, coap.observe, coap.reading, coap.topics, gateway.domain,
gateway.port, store.api.
"""
