"""From the first byte to a session: the link to the client, CONNECT, and AUTH.

Sessions and connections import this room; it imports messages and the codec.
"""
