"""The file layer: files and their lock, the room on their disk, and checks of LMDB's files.

It knows neither frames nor records.

Imported by: engine, integrity, log, node, replication, views, controller.disk, controller.node, controller.raft.
Imports: base.
"""
