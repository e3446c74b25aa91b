"""Queries of the dashboard: functions from the tables to Arrow tables and plain values.

`spark.dashboard.pages` and `spark.dashboard.server` import it. It imports DuckDB, pyarrow, `spark.tables` and
`spark.telemetry`, and knows neither Dash nor Spark.
"""
