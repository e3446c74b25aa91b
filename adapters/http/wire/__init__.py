"""HTTP/1.1 and HTTP/2 on the wire: requests and their bodies in, responses out, limits on what a peer can cost.

The handlers and the connection import this room; it imports the gateway's errors and the CloudEvents adapter.
"""
