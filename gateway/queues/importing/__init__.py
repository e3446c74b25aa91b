"""Import of RabbitMQ's definitions: the file, what of it is taken, and who makes it.

Imported by: runtime.
Imports: domain, ops, port, queues, queues.leaving, security, controller.api, store.base.
"""
