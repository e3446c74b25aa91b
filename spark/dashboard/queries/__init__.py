"""Queries of the dashboard: functions from the tables to Arrow tables and plain values.

Of libraries it knows DuckDB and pyarrow, and neither Dash nor Spark.

Imported by: dashboard, dashboard.layout, dashboard.pages.
Imports: spark, tables, telemetry.
"""
