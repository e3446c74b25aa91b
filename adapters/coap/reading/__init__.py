"""The answers to GET and FETCH: last values, the values of a filter, and links to addresses (RFC 6690).

`adapters.coap.readings` and the room of Observe import it. It imports the rest of `adapters.coap` except for those and
the endpoint.
"""
