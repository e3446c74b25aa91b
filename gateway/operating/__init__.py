"""An operator's levers: the questions, checks and reports of the commands of `headgate cluster`.

None of it prints but the report.

Imported by: cli.
Imports: groups, ownership, process, sessions, controller.api, controller.elections, controller.remote, controller.wire,
store.api, store.base, store.format, store.node.
"""
