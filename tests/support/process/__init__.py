"""Processes and the ground below tests: gateways, ports, event loops, certificates, relays, logging.

Everything in `tests` may import it. It imports the product, and no other room.
"""
