"""Code that tests share: drivers, rigs, clusters of processes, faults and checkers, a room for each subject.

Tests, simulations and benchmarks import it by its whole name, as `tests.support.store.store_kit`; the product never
does. It imports the product and `tests.support`, never a test.
"""
