"""The PySpark data source: its options, its columns, and the positions of a query.

`from spark.source.datasource import HeadgateDataSource` registers it. Columns that are made from bodies come from
`spark.decode`; rows become messages in `spark.publishing`.

Imported by: job, shell, pyspark_headgate.
Imports: decode, publishing, spark, store.api, store.base, store.format, store.remoting, store.rpc.
"""
