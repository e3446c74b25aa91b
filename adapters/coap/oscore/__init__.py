"""OSCORE (RFC 8613): the protection of messages, and the socket that takes and gives protected ones.

`option` and `context` are the codec and the cryptography, over aiocoap's key derivation and algorithms; `messages` says
which option goes where; `association` holds the exchanges of one peer in flight; `contexts` are those in use; `socket`
puts them before endpoints.

Imported by: coap.
Imports: coap.codec, coap.endpoint, coap.exchanges, coap.messages, coap.secured, gateway.domain, gateway.port.
"""
