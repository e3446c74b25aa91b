"""A running gateway as its own client sees it: its HTTP port, its groups, its keys and values.

It has no part of a server.

Imported by: cli.
Imports: ops, port, store.api, store.base.
"""
