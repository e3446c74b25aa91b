"""The language of a store node and its clients: methods, arguments, frames and names of streams.

`replica_wire` has the messages between nodes of a group, and with operators. `table` has a row for each call, from
which both sides are made.

Imported by: node, reach, remoting, serving, gateway.config, gateway.operating, gateway.ops, spark.source.
Imports: api, base, format, replication, controller.api.
"""
