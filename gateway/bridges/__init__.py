"""Bridges: messages of other people's brokers, read into the log, and addresses that are forwarded to them.

`amqp` has those of AMQP 0-9-1.

Imported by: config, process, remote.
Imports: gateway.*, store.api, store.base, store.format.
"""
