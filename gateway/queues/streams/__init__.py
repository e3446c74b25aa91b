"""Queues of the type stream: read from the log at any offset, by any number of consumers, who take nothing away.

Imported by: queues, queues.model, queues.topology.
Imports: domain, port, queues.leasing, queues.leaving, store.api, store.base, store.format.
"""
