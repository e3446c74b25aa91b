"""A replica of a group, in whichever role: its disk, its identity, its proof of it, and the context of its role.

Imported by: node, node.repair, gateway.process.
Imports: store.*, controller.api.
"""
