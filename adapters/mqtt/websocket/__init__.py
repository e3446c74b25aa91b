"""MQTT over WebSocket (MQTT 5.0, 6): the upgrade, the frames, and the connection inside.

Imported by: mqtt.
Imports: websocket, store.base.
"""
