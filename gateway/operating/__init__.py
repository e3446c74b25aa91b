"""An operator's levers: what a command of `headgate cluster` asks, checks and says beyond one call of the controllers.

`electing`, `configuring`, `replicas` and `queues` have a subject each; none of them prints. Imported by the command
line; imports the controllers' client and, for `queues`, the store's.
"""
