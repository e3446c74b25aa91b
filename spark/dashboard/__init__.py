"""The dashboard: pages in a browser over the telemetry tables and the gateway's admin API. It never asks Spark.

Rooms, from the top: `server` (the application and its process), `pages`, `layout` (the parts of pages), then `queries`
(pure functions over the tables, without Dash), `clients` (the gateway's ports) and `guard` (who is let in).

Imported by: gateway.cli.
Imports: decode, spark, tables, telemetry, store.api.
"""
