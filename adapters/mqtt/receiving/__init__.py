"""Reception of PUBLISH packets, the same from a client and from an upstream: caches, packet heads, answers, keep alive.

Sessions, connections and upstreams import this room; it imports the codec.
"""
