"""The way from the first byte to a session: the link to the client, CONNECT, and AUTH.

Imported by: mqtt, mqtt.session.
Imports: mqtt.codec, mqtt.messages, gateway.domain, gateway.port, store.api.
"""
