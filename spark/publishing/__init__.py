"""Rows as messages, through the gateway's HTTP: its rights, quotas and routes hold for Spark as for any client.

`spark.source` imports it, for the writer of the data source and for the offsets of groups; it imports no Spark but in
`writer`, and of the store nothing.
"""
