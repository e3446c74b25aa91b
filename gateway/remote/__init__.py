"""A running gateway as its own client sees it: its HTTP port, groups, keys and values, and devices that publish.

It has no part of a server.

Imported by: cli.
Imports: base, bridges, domain, ops, port, push, store.api, store.base.
"""
