"""The state machine that the controllers agree on: topics, queues, groups, and where queues go.

Deterministic: no clock, no chance, no input or output.

Imported by: disk, elections, incarnations, node, remote, wire.
Imports: api, raft.
"""
