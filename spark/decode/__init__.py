"""Bodies to samples: which numbers a message reports.

Plain functions of messages, without Spark and files. `spark.source` imports it; it imports the store's message alone.
"""
