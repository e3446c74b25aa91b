"""Clusters of processes for tests, the network and the disks below them, and faults that happen to them.

Tests of clusters and benchmarks import it. It imports the product, `controller`, `histories` and `process`.
"""
