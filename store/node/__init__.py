"""A store node: one replica of a store group, which follows or is the master, as the controllers say.

`run` is its start and end.

Imported by: gateway.process.
Imports: store.*, controller.api, controller.complaints, controller.disk, controller.elections, controller.remote.
"""
