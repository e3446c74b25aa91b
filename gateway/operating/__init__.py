"""An operator's levers: the questions, checks and reports of the commands of `headgate cluster`.

None of it prints but the report.

Imported by: cli.
Imports: domain, groups, ownership, controller.api, controller.elections, controller.remote, controller.wire, store.api,
store.base, store.format, store.rpc.
"""
