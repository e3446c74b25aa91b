"""The pages, a file each: `page` makes the fixed part, `body` the part that is refreshed.

Imported by: dashboard.
Imports: dashboard.clients, dashboard.layout, dashboard.queries, decode, spark, telemetry, store.api.
"""
