"""Tools that know nothing of messages: coroutines without tasks, turns by name, typed tables, pauses, changes of files.

Imported by: gateway.*.
Imports: store.base.
"""
