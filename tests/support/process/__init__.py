"""Processes and the ground below tests: gateways, ports, event loops, clocks, certificates, relays.

Everything in `tests` may import it. It imports the product, and no other room.
"""
