"""The wire format of AMQP 0-9-1: bytes to methods and content headers, messages to frames, without any state.

Imported by: amqp.
Imports: cloudevents, gateway.domain, gateway.port, store.api.
"""
