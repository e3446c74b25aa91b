"""The answers to GET and FETCH: last values, the values of a filter, and links to addresses (RFC 6690).

Imported by: coap.endpoint, coap.observe.
Imports: cloudevents, coap.codec, coap.exchanges, coap.messages, coap.topics, gateway.domain, gateway.port, store.api.
"""
