"""The controllers' interface: the client, its values, commands, and the limits on names.

`client` is for everybody, `commands` for callers that change something.

Imported by: controller.*, gateway.*, store.cluster, store.node, store.reach, store.remoting, store.rpc, store.serving.
Imports: none.
"""
