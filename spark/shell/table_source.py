"""A telemetry table as Spark reads it from an object store, for which Spark alone has no client.

Workers read with deltalake, whose settings of the store are those of the job. `spark.shell.views` makes a view of each
table; tables in a directory are read by Spark itself.
"""

import datetime
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark.tables.files import Location
from spark.tables.schemas import SPECS

FORMAT: Final = "headgate-table"
TASKS_MAX: Final = 64  # of one table

_COMPARES: Final[Mapping[type[Filter], Callable[[Any, Any], Any]]] = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    In: lambda field, values: pc.is_in(field, pa.array(values)),
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}


class TableSource(DataSource):
    """One version of one table. Options: `place`, `table`, `version`, and `storage`, a JSON object."""

    @classmethod
    def name(cls) -> str:
        """Returns the name that `format` takes."""
        return FORMAT

    def schema(self) -> StructType:
        """Returns the columns of the table."""
        return from_arrow_schema(SPECS[self.options["table"]].schema)

    def reader(self, schema: StructType) -> "TableReader":
        """Returns a reader of all columns."""
        place = Location.of(self.options["place"], json.loads(self.options["storage"]))
        return TableReader(place, self.options["table"], int(self.options["version"]))


class TableReader(DataSourceReader):
    """Reads the files of a version, shared out among tasks. Pickled to the workers, without connections."""

    def __init__(self, place: Location, table: str, version: int) -> None:
        self._place, self._table, self._version = place, table, version
        self._filters: list[tuple[type[Filter], str, Any]] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Takes filters of texts and days, by which files are left out. Spark looks at every row again."""
        schema = SPECS[self._table].schema
        for one in filters:
            attribute: tuple[str, ...] = getattr(one, "attribute", ())
            value: Any = getattr(one, "value", None)
            values: Iterable[Any] = value if isinstance(one, In) else (value,)
            if type(one) in _COMPARES and len(attribute) == 1 and _comparable(schema.field(attribute[0]).type, values):
                self._filters.append((type(one), attribute[0], value))
            yield one

    def partitions(self) -> Sequence[InputPartition]:
        """Returns a partition for each file, or for several where there are many files; one where there is none."""
        count = max(1, min(TASKS_MAX, len(self._fragments())))  # Spark reads a partition of its own where it gets none
        return [InputPartition((number, count)) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a partition's files."""
        number, count = partition.value
        schema, chosen = SPECS[self._table].schema, self._chosen()
        for fragment in self._fragments()[number::count]:
            yield from fragment.to_batches(schema=schema, filter=chosen)

    def _chosen(self) -> Any:
        found = pc.scalar(True)
        for kind, name, value in self._filters:
            found = found & _COMPARES[kind](pc.field(name), value)
        return found

    def _fragments(self) -> list[Any]:
        """Returns the files that may hold chosen rows, in one order wherever it is asked."""
        storage = dict(self._place.options)
        table = DeltaTable(self._place.child(self._table), version=self._version, storage_options=storage)
        dataset = table.to_pyarrow_dataset(schema=SPECS[self._table].schema)
        return sorted(dataset.get_fragments(filter=self._chosen()), key=lambda fragment: str(fragment.path))


def _comparable(kind: pa.DataType, values: Iterable[Any]) -> bool:
    """Returns whether pyarrow compares such values as Spark does: of numbers NaN is another matter, and null of all."""
    wanted = {pa.string(): str, pa.date32(): datetime.date}.get(kind)
    return wanted is not None and all(isinstance(value, wanted) for value in values)
