"""Repair of a replica's damaged log from the other replicas of its group (docs/decisions/0031).

Here live the call by which a replica sends the sound frames of a range (`serving`), the one by which another fetches
them (`fetching`), and the task that has all damages of a node repaired, in whichever role (`repairer`). It uses the
parts that the roles of a node share (`store.node.replica`), and the core that decides which replica to ask for which
range (`store.replication.repairs`); it knows neither role.

Imported by: node.
Imports: store.*, controller.api.
"""
