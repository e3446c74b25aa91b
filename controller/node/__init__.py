"""A controller: Raft, metadata and elections in one process, its server, and its start and end.

Imported by: gateway.process.
Imports: controller.*, store.base, store.disk.
"""
