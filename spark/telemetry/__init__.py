"""The arithmetic of telemetry: windows, digests, latest values, lateness, liveness and anomalies.

Functions from Arrow tables to Arrow tables, with numpy inside; without Spark, files and clocks.

Imported by: dashboard, findings, generator, job, tables.
Imports: none.
"""
