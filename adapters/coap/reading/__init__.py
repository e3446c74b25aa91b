"""The answers to GET and FETCH: last values, the values of a filter, and links to addresses (RFC 6690).

Imported by: coap, coap.observe.
Imports: cloudevents, coap, gateway.domain, gateway.port, store.api.
"""
