"""The way from a published message to rows in the logs: routing, frames, marks, retained and delayed messages.

`ingest` makes frames and `outgoing` hands them to the store groups.

Imported by: gateway.*.
Imports: domain, ops, ownership, port, controller.api, store.api, store.base, store.format, store.guards.
"""
