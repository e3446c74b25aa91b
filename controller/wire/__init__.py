"""Messages between controllers and to everybody else, and the streams that carry them.

The rooms above import this one; it imports the metadata, the registry and Raft's messages.
"""
