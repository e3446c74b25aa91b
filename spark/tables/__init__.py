"""Delta tables: their schemas, the job's commits, the reader, and maintenance.

`spark.job` and the command line import it, and whoever reads tables: `from spark.tables.reader import Tables`. It
imports `spark.telemetry` for the columns of rows, and nothing of Spark itself.
"""
