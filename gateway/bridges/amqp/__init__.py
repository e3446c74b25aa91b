"""Bridges over AMQP 0-9-1: queues of upstream brokers that are read, and addresses that are forwarded to exchanges.

aio-pika keeps the connections (`link`), `reading` and `forwarding` are the two directions, each over a connection of
its own, and `window` decides, without input or output, which message is sent next. The configuration reads
`gateway.bridges.shared.amqp_settings`, which imports none of these; `gateway.bridges.bridges` imports `bridge`, where
there is such a bridge.

Imported by: bridges, bridges.sinks.
Imports: bridges.shared, delivery, domain, ownership, port, store.api, store.base, store.format.
"""
