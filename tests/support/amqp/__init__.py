"""AMQP peers for tests: a client that speaks to a connection without sockets, and scripts of exclusive queues.

Everything in `tests` may import it. It imports the product.
"""
