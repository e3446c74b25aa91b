"""A controller's directory: Raft driven over LMDB, older directories, and what is noted beside them.

Imported by: incarnations, node, wire, store.node.
Imports: api, metadata, raft, store.base, store.disk.
"""
