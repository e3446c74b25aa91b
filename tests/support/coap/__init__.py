"""CoAP peers for tests: a driver without sockets, and a device on a real one.

Everything in `tests` may import it. It imports the product.
"""
