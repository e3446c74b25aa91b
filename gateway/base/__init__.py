"""Tools that know nothing of messages: coroutines without tasks, turns by name, typed tables, pauses, changes of files, periodic work.

Imported by: gateway.*.
Imports: store.base.
"""
