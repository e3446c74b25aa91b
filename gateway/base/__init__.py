"""Tools that know nothing of messages: coroutines without tasks, turns by name, tables, pauses, files, periodic work.

Imported by: gateway.*.
Imports: store.base.
"""
