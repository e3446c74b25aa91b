"""Controllers and Raft nodes for tests: clusters in memory, with sockets and as processes, and transcripts of Raft.

Everything in `tests` may import it. It imports the product and `process`.
"""
