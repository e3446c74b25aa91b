"""Wire protocols as sans-IO state machines: bytes to domain messages and back.

`cloudevents` has the parts that several of them need; no adapter knows another one.

Imported by: none.
Imports: gateway, store.
"""
