"""The `headgate` data source for every Spark session whose Python has this package: Spark looks for such modules.

So `format("headgate")`, and `USING headgate` in SQL, need no import. It imports `spark.source`; nobody imports it.
"""

from spark.source.datasource import HeadgateDataSource

__all__ = ["DefaultSource"]

DefaultSource = HeadgateDataSource
