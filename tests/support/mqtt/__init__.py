"""MQTT peers for tests: drivers without sockets, real clients, and brokers for bridges to read from.

Everything in `tests` may import it. It imports the product and `process`.
"""
