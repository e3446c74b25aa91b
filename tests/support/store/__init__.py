"""Stores, replicas and store nodes for tests: frames, disks that fail, replication without a network.

Everything in `tests` may import it. It imports the product, `controller` and `process`.
"""
