"""A controller's directory: Raft driven over LMDB, the migration of older directories, and small files beside them.

Imported by: incarnations, node, remote, wire, gateway.process, store.node.
Imports: api, metadata, raft, store.base, store.disk.
"""
