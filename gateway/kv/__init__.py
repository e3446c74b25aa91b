"""Keys and values for adapters: the answers to the requests of `gateway.port.kv`.

The runtime imports this room, and `config` its settings; it imports publishing.
"""
