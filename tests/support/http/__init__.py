"""HTTP peers and gateways for tests: bytes in both directions, without sockets.

Everything in `tests` may import it. It imports the product.
"""
