"""Delta tables: their schemas, the job's commits, the reader, and maintenance.

Readers of tables begin with `from spark.tables.reader import Tables`. It has nothing of Spark itself.

Imported by: dashboard, findings, generator, job, shell, gateway.cli.
Imports: spark, telemetry.
"""
