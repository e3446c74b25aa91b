"""Leases of queued messages, as they are decided: their holders, their order, their ends.

Cores without input or output. `store.local` imports this room, and `store.recent` for what is not settled yet; it
imports the client's interface and the format.
"""
