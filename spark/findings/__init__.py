"""Findings as CloudEvents: rows of the table `anomalies` become events that a gateway is sent, each once.

`spark.job` imports it, and runs it on executors. It imports `spark.telemetry`, the files of `spark.tables`, and an HTTP
client; nothing of Spark itself.
"""
