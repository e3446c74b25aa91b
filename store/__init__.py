"""The store node: one commit log, and views of it in LMDB.

The rooms are floors, from `base` up to `node`; import-linter holds them to it.

Imported by: adapters, controller, gateway, spark.
Imports: controller.
"""

import os

# gRPC's fork handlers break children of a process that has a channel or a server open: one of ten children of uvloop,
# which forks where asyncio does not, ends by SIGSEGV before it runs its program, and so does the Java that Spark
# starts. Nothing here forks without exec, so they are not needed. gRPC reads this once, when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# gRPC writes a line to standard error for each handshake that fails, and for each name of a server that it does not
# know, in a format of its own and as often as a stranger likes. `store.base.listening` logs refused connections.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
