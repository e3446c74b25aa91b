"""Bodies to samples: which numbers a message reports.

Plain functions of messages, without Spark and files.

Imported by: dashboard, generator, job, source.
Imports: spark, store.api.
"""
