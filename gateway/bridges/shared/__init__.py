"""The parts of bridges of every kind: settings, streams to brokers, reconnecting, storing what is read, figures.

Imported by: bridges, bridges.amqp, bridges.sinks, config.
Imports: base, domain, ownership, port, publishing, store.api, store.base.
"""
