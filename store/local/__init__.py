"""A store group in this process: the client's interface over the engine, on an asyncio loop.

Each subject of the interface has a file (`log`, `queues`, `groups`, `leases`; `kv` has the keys), and `replication`
is what a node asks; they share `core`. `local` puts them together. Nodes, and gateways that keep their own data,
import this room; it imports the engine and what is recent.
"""
