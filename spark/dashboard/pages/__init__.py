"""The pages, a file each: `page` makes what stands still, `body` what is refreshed.

Imported by: dashboard.
Imports: dashboard.clients, dashboard.layout, dashboard.queries, spark.
"""
