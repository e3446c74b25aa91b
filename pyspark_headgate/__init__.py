"""The `headgate` data source for every Spark session whose Python has this package: Spark looks for such modules.

So `format("headgate")`, and `USING headgate` in SQL, need no import.

Imported by: none.
Imports: spark.
"""

import os

if not os.environ.get("HEADGATE_SPARK_REGISTERED"):  # by `spark.job.session`: Spark would warn of a second one
    from spark.source.datasource import HeadgateDataSource as DefaultSource  # noqa: F401  # it is looked for by this name
