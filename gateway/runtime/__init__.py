"""The asyncio shells: connections, sockets, and the hub that they share.

`process` imports this room; it imports all rooms below.
"""
