"""The messages that leave a queue without being consumed: by which rules, from its head, and as dead letters.

The room around it imports this one; it imports the port and the store's interface.
"""
