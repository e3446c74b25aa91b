"""A controller: Raft, metadata and elections in one process, its server, and its start and end.

The command line imports `run`, gateways without a cluster `local`; the room imports all of the package.
"""
