"""Our end of connections to brokers: `client` connects, `reading` is for bridges, `publishing` for sinks.

Imported by: mqtt.
Imports: mqtt.codec, mqtt.messages, mqtt.receiving, gateway.domain, gateway.port, store.api.
"""
