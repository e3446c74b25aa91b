"""Handlers of requests: publishing, subscribing, searches, keys and values, groups, and who may ask.

`routes` is the table of them. The connection imports this room; it imports the wire, and the gateway's port and domain.
"""
