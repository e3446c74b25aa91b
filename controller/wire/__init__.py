"""Messages between controllers and to everybody else, and the streams that carry them.

Imported by: incarnations, node, remote, gateway.operating.
Imports: api, complaints, disk, elections, metadata, raft, store.base.
"""
