"""A client's session while a connection holds it: subscriptions, deliveries, acknowledgements.

Imported by: mqtt.
Imports: mqtt.codec, mqtt.connecting, mqtt.messages, mqtt.receiving, gateway.domain, gateway.port, store.api,
store.format.
"""
