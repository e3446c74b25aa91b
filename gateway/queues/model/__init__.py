"""The model: exchanges, bindings, and a queue of this process.

Imported by: queues, queues.consumers, queues.importing, queues.shared, queues.topology, runtime.
Imports: gateway.*, store.api, store.format.
"""
