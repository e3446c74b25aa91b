"""The controllers' interface: the client, its values, commands, and the limits on names.

`client` is for everybody, `commands` for whoever has something changed.

Imported by: controller.*, gateway.*, store.cluster, store.node, store.reach, store.rpc, store.serving.
Imports: none.
"""
