"""Complaints: which nodes cannot reach a master that sends heartbeats, and when such a master is replaced.

`messages` holds what travels, `ledger` what is kept of it and for how long, `policy` the rules. Nothing here does input
or output or looks at a clock.

Imported by: elections, node, wire, store.node, store.reach.
Imports: api.
"""
