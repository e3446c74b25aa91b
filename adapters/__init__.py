"""Wire protocols as sans-IO state machines: bytes to domain messages and back.

An adapter imports the gateway's domain and port, the store's formats, and no other adapter.
"""
