"""Named queues and exchanges after AMQP 0-9-1, and the queues of shared subscriptions.

Imported by: config, groups, runtime.
Imports: gateway.*, controller.api, store.api, store.base, store.format.
"""
