"""The asyncio shells: connections, sockets, and the hub that they share.

Imported by: process.
Imports: gateway.*, controller.api, store.api, store.base, store.format.
"""
