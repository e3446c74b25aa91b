"""Rows as messages, through the gateway's HTTP: its rights, quotas and routes hold for Spark as for any client.

The writer of the data source and the offsets of groups use it. Of its files, `writers` and `events` alone import Spark.

Imported by: findings, generator, job, source, gateway.cli.
Imports: spark, store.base.
"""
