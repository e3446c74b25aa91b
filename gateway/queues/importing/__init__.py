"""Import of RabbitMQ's definitions: the file, the parts taken over, and the code that makes them.

Imported by: runtime.
Imports: gateway.*, controller.api, store.base.
"""
