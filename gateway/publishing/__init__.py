"""From a published message to rows in the logs: routing, frames, marks, retained and delayed messages.

`ingest` makes frames and `outgoing` hands them to the store groups. Sessions, queues, groups and the runtime import
this room; it imports ownership and the port.
"""
