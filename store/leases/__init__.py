"""Leases of queued messages, as they are decided: their holders, their order, their ends.

Cores without input or output.

Imported by: local, recent.
Imports: api, format.
"""
