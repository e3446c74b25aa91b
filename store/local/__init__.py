"""A store group in this process: the client's interface over the engine, on an asyncio loop.

`calls` has the calls by subject, `kv` the key-value half. Nodes, and gateways that keep their own data, import this
room; it imports the engine and what is recent.
"""
