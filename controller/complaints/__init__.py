"""Complaints: which nodes cannot reach a master that sends heartbeats, and when such a master is replaced.

`messages` defines the reports, `ledger` keeps them for a limited time, `policy` has the rules. Nothing here does input
or output or looks at a clock.

Imported by: elections, node, wire, store.node, store.reach.
Imports: api.
"""
