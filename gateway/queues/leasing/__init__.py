"""The leasing of a queue's messages: the pump between leases and consumers, and the lanes of a queue read as one.

Imported by: queues, queues.model, queues.streams, queues.topology.
Imports: domain, port, publishing, queues.leaving, store.api, store.base, store.format.
"""
