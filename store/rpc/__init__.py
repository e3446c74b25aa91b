"""The language of a store node and its clients: methods, arguments, frames and names of streams.

`table` has a row for each call, from which both sides are made.

Imported by: node, reach, remoting, serving, gateway.config, spark.source.
Imports: api, base, format, controller.api.
"""
