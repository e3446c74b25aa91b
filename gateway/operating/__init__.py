"""An operator's levers: the questions, checks and reports of the commands of `headgate cluster`.

None of it prints but the report. `starting` runs a whole cluster on this machine (`headgate cluster up`).

Imported by: cli.
Imports: config, domain, groups, ownership, process, controller.api, controller.elections, controller.remote,
controller.wire, store.api, store.base, store.format, store.rpc.
"""
