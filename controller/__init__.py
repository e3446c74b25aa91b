"""Cluster metadata: topics, queues and their numbers, and who serves them."""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # as `store` says: whichever of both is imported first
