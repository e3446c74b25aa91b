"""The messages that leave a queue without being consumed: by which rules, from its head, and as dead letters.

Imported by: gateway.*.
Imports: domain, port, store.api, store.base, store.format.
"""
