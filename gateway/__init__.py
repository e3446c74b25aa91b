"""The proxy tier: the domain model, routing, delivery, the asyncio shells, configuration and the command line.

The rooms are floors, from `base` up to `cli`; import-linter holds them to it.

Imported by: adapters, amqtt_headgate.
Imports: controller, spark, store.
"""
