"""The proxy tier: the domain model, routing, delivery, the asyncio shells, configuration and the command line.

The rooms are floors, from `base` up to `cli`; each says what it imports, and import-linter holds them to it.
"""
