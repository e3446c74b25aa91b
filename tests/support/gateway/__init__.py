"""Proxies, queues and consumer groups over real stores in one process, with clocks that a test sets.

Everything in `tests` may import it. It imports the product, `store` and `process`.
"""
