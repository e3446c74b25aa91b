"""The controllers as others see them: a copy of their state, commands to their leader, heartbeats.

Imported by: gateway.operating, gateway.ops, gateway.process, store.node.
Imports: api, disk, elections, metadata, wire, store.base.
"""
