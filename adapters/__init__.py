"""Wire protocols as sans-IO state machines: bytes to domain messages and back.

What several of them need is `cloudevents`; no adapter knows another one.

Imported by: none.
Imports: gateway, store.
"""
