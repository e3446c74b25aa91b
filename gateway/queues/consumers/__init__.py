"""The consumers of a queue at all proxies: their number, the single active one, and the last use of the queue.

Imported by: queues, queues.topology.
Imports: base, domain, ownership, queues.model, store.api, store.base.
"""
