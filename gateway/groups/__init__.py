"""Consumer groups: their members, the queues of each member, and the offsets of each group.

Imported by: config, operating, runtime.
Imports: base, domain, ownership, port, publishing, queues, controller.api, store.api, store.base, store.format.
"""
