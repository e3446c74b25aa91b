"""Reception of PUBLISH packets, the same from a client and from an upstream: caches, packet heads, answers, keep alive.

Imported by: mqtt, mqtt.session, mqtt.upstream.
Imports: mqtt.codec.
"""
