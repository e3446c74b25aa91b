"""A controller's directory: Raft driven over LMDB, older directories, and what is noted beside them.

`controller.node` imports this room; it imports Raft and the metadata.
"""
