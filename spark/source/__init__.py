"""The PySpark data source: its options, its columns, and the positions of a query.

`from spark.source.datasource import HeadgateDataSource` registers it. `spark.job` imports it; it imports the store's
client, `spark.decode` for the columns that are made from bodies, and `spark.publishing` for rows that become messages.
"""
