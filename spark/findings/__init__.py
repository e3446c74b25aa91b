"""Findings as CloudEvents: rows of the table of anomalies become events that a gateway is sent, each once.

`spark.job` runs it on executors. It has an HTTP client, and nothing of Spark itself.

Imported by: job.
Imports: publishing, spark, tables, telemetry.
"""
