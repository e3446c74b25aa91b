"""The port: everything that adapters and gateway say to each other.

`adapter` is the vocabulary of a connection, and `datagram` that of a UDP socket. Requests are a file for each subject:
`sessions`, `reads`, `queues`, `streams`, `transaction`, `bodies`, `shared`, `groups`, `kv`, `push` and `oscore`, with
the `marks` and `tickets` that requests carry. `single` is the short way of a lone message, `pressed` asks a peer to
publish less, `operated` shows connections and sessions to an operator, and `bridge` is the port turned round.

Imported by: gateway.*, adapters.amqp, adapters.cloudevents, adapters.coap, adapters.http, adapters.mqtt,
adapters.websocket.
Imports: domain, store.api, store.format.
"""
