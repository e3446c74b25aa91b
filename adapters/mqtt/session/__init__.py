"""A client's session while a connection holds it: subscriptions, deliveries, acknowledgements.

Connections import this room; it imports the connection context, messages and the codec.
"""
