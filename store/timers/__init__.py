"""Timers: records that are appended when they are due, and a ticker that survives a changed wall clock.

Imported by: local, node, recent, serving, gateway.process.
Imports: api, base, format, views.
"""
