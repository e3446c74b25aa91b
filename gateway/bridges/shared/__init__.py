"""The parts of bridges of every kind: settings, streams to brokers, reconnecting, storing the messages read, figures.

Imported by: bridges, bridges.amqp, bridges.sinks, config.
Imports: base, domain, ownership, port, publishing, store.api, store.base.
"""
