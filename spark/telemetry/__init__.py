"""The arithmetic of telemetry: windows, digests, latest values, lateness, liveness and anomalies.

Functions from Arrow tables to Arrow tables, with numpy inside; without Spark, files and clocks. `spark.job` and
`spark.tables` import it; it imports nothing of this package but `spark.errors`.
"""
