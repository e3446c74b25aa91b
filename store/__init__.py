"""The store node: one commit log, and views of it in LMDB."""

import os

# gRPC's fork handlers break the Java that Spark starts from a process with a channel or a server open. Nothing here
# forks without exec, so they are not needed. gRPC reads this once, when it is loaded.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
