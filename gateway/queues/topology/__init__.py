"""The topology: exchanges, queues and bindings as declared, kept in the KV, followed at all proxies, and removed.

Imported by: queues, queues.importing, queues.shared.
Imports: gateway.*, controller.api, store.api, store.base, store.format.
"""
