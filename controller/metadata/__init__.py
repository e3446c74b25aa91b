"""The state machine that the controllers agree on: topics, queues, groups, and where queues go.

Deterministic: no clock, no chance, no input or output. The rooms above import this one; it imports the values and
Raft's.
"""
