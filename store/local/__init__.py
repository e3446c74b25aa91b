"""A store group in this process: the client's interface over the engine, on an asyncio loop.

Each subject of the interface has a file (`log`, `queues`, `groups`, `leases`, `keys`), and `replication` serves the
node; they share `core`. `leases` uses `leasing`, `settling` and `dead_letters`. `local` puts all of them together.

Imported by: node, gateway.process.
Imports: store.*.
"""
