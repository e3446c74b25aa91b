"""Bridges: messages of other people's brokers, read into the log, and addresses that are forwarded to them.

`amqp` has those of AMQP 0-9-1. `process` imports this room, and `config` its settings; it imports delivery, ownership,
publishing and the port.
"""
