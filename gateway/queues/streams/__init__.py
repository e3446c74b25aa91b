"""Queues of the type stream: read from the log at any offset, by any number of consumers, who take nothing away.

Imported by: queues.
Imports: domain, port, queues, queues.leaving, store.api, store.base, store.format.
"""
