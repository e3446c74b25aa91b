"""Processes by role: each checks its configuration, opens its parts, runs, and closes them in order.

The command line imports this room; it imports everything below, and is the only one that knows the store's engine.
"""
