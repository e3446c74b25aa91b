"""Tools that know nothing of messages: coroutines without tasks, turns, counts, tables, pauses, files, periodic work.

Imported by: gateway.*.
Imports: store.base.
"""
