"""Publications without a connection: messages, events, Sparkplug, topics that ask for a delay.

Imported by: mqtt, mqtt.connecting, mqtt.session, mqtt.upstream.
Imports: cloudevents, mqtt.codec, websocket, gateway.domain, gateway.port, store.api.
"""
