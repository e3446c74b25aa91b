"""Confirmed records that the views do not have yet: their keys and timers, and those who wait for new ones.

All of it belongs to one thread, the event loop's. `store.local` and its key-value store import this room; it imports
the views, timers and leases.
"""
