"""The gateway's values: addresses, filters, principals, access rules, errors, and conditions in SQL92.

Decisions without input or output. The settings of a subject lie beside it.

Imported by: gateway.*, adapters.amqp, adapters.cloudevents, adapters.coap, adapters.http, adapters.mqtt,
adapters.websocket, amqtt_headgate.
Imports: store.api, store.base, store.format, store.guards.
"""
