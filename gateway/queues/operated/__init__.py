"""Settings that operators change while gateways run: policies, virtual hosts and their limits.

Imported by: queues.importing, queues.topology, runtime.
Imports: domain, ownership, queues.leaving, store.api, store.base.
"""
