"""Keys and values for adapters: the answers to the requests of `gateway.port.kv`.

Imported by: config, runtime.
Imports: base, domain, port, publishing, store.api, store.base.
"""
