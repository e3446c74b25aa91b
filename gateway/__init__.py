"""The proxy tier: the domain model, routing, delivery, the asyncio shells, configuration and the command line."""
