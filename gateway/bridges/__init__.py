"""Bridges: messages of other people's brokers, read into the log.

`process` imports this room, and `config` its settings; it imports ownership and the port.
"""
