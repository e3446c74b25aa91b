"""Tools that know nothing of messages: coroutines without tasks, turns by name, typed tables, pauses.

The whole gateway may import this room; it imports `store.base` alone.
"""
