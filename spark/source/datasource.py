"""The `headgate` data source: the log as a DataFrame, batch and streaming, and rows as messages.

    spark.dataSource.register(HeadgateDataSource)
    spark.read.format("headgate").option("filter", "telemetry/+/dev42/#").load()
    spark.readStream.format("headgate").option("startingOffsets", "latest").load()
    frame.write.format("headgate").option("address", "analytics/{device}").mode("append").save()

Options are the fields of `spark.source.options.SourceOptions`, and of `spark.publishing.options.WriterOptions`.
`spark.source.readers` says how a query resumes. Spark's Python data sources are not told which columns a query uses, so
name them, by the option `columns` or by `.schema(...)`: without a column that comes from the message itself no record
is decoded, and `count` over `columns=offset` is several times faster.

Spark starts the Python of its workers by the name `PYSPARK_PYTHON`. Where nothing says another, importing this module
makes it the Python that runs: so a script works that is started by a virtual environment's own Python.

Filters of a query are pushed down where the session allows that (`PushingDataSource`): by default Spark refuses sources
that do.
"""

import os
import sys
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark.source.columns import schema_of
from spark.source.options import SourceOptions
from spark.source.readers import BatchReader, PushingReader, StreamReader

if TYPE_CHECKING:
    from spark.publishing.writers import BatchWriter, StreamWriter

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"  # the setting without which Spark refuses sources that push

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


class HeadgateDataSource(DataSource):
    """The data source, to be registered with `spark.dataSource.register`."""

    @classmethod
    def name(cls) -> str:
        """Returns the name that `format` takes."""
        return "headgate"

    def schema(self) -> StructType:
        """Returns the columns of the option `columns`, or all that are not derived."""
        options = SourceOptions.parse(self.options)
        return schema_of(options.columns, options.format)

    def reader(self, schema: StructType) -> BatchReader:
        """Returns a batch reader of these columns."""
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        """Returns a streaming reader of these columns."""
        return StreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        """Returns a writer of these columns as messages."""
        from spark.publishing.writers import BatchWriter  # noqa: PLC0415  # httpx: 0.15 s of every worker that reads

        return BatchWriter.of(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802  # Spark's name
        """Returns the same for a streaming query."""
        from spark.publishing.writers import StreamWriter  # noqa: PLC0415

        return StreamWriter.of(self.options, schema, overwrite=overwrite)


class PushingDataSource(HeadgateDataSource):
    """The same for sessions that have `PUSHDOWN` set: filters of a query bound the records to read."""

    def reader(self, schema: StructType) -> BatchReader:
        """Returns a batch reader of these columns, which takes filters."""
        return PushingReader(SourceOptions.parse(self.options), schema)
