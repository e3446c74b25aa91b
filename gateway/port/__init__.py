"""The port: everything that adapters and gateway say to each other.

`adapter` is the vocabulary of a connection; `queues`, `groups`, `kv` and `shared` are requests by subject, `bridge` is
the port turned round. Adapters and the rooms above import this room; it imports the domain.
"""
