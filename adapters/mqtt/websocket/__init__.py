"""MQTT over WebSocket (MQTT 5.0, 6): the upgrade, the frames, and the connection inside.

The adapter's factory imports this room; it imports the MQTT connection.
"""
