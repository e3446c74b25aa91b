"""The server's side: the streams of a store node, for proxies and readers, over any `StoreClient`.

Nodes, and gateways that keep their own data, import this room; it imports `store.rpc` and `store.pipes`, not the
engine.
"""
