"""Cluster metadata: topics, queues and their numbers, and who serves them.

The rooms are floors, from `api` up to `node`. Below them are the store's `base` and `disk`, and nothing else of the
product.

Imported by: gateway, store.
Imports: store.
"""

import os

# As `store` says: whichever of both is imported first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
