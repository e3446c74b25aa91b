"""Histories of concurrent calls for tests: a workload of keys that records one, and a check of linearizability.

Everything in `tests` may import it. It imports the product.
"""
