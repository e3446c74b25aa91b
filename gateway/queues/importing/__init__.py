"""Import of RabbitMQ's definitions: the file, what of it is taken, and who makes it.

Imported by: runtime.
Imports: gateway.*, controller.api, store.base.
"""
