"""Commands that run a server, and those that read or mend its directory while it stands still.

Imported by: cli.
Imports: config, ops, process, controller.api, controller.incarnations, store.api, store.base, store.engine,
store.format.
"""
