"""Consumer groups: their members, the queues of each member, and the offsets of each group.

The runtime and `operating` import this room; it imports ownership and the store's client.
"""
