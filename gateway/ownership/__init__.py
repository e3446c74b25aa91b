"""Ownership of names among several proxies: owners, their keys, presence, outage leases, the metadata barrier.

A proxy's presence is its one lease; all that it owns hangs on it (docs/decisions/0041).

Imported by: gateway.*.
Imports: domain, port, controller.api, store.api, store.base, store.format.
"""
