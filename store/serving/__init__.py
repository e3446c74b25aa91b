"""The server's side: the streams of a store node, for proxies and readers, over any `StoreClient`.

Imported by: node, gateway.process.
Imports: api, base, format, rpc, timers, controller.api.
"""
