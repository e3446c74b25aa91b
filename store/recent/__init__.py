"""Confirmed records that the views do not have yet: their keys and timers, and those who wait for new ones.

All of it belongs to one thread, the event loop's.

Imported by: local.
Imports: store.*.
"""
