"""Topic resources of the publish-subscribe draft: their properties in CBOR, and the requests that read and write them.

Imported by: coap.endpoint, coap.reading.
Imports: coap.codec, coap.exchanges, coap.messages, gateway.domain, gateway.port, store.api.
"""
