"""SQL of a stranger over the tables: one statement that reads, bounded in rows, time and memory.

The database has no files, no network and no variable of this process (`reading`), and lives for one statement: a
statement's changes are gone with it.
"""

import duckdb
import pyarrow as pa

from spark.dashboard.queries.csv_export import values_of
from spark.dashboard.queries.reading import Reading, Result
from spark.errors import SparkError

ROWS_SHOWN_MAX = 1_000  # of a result
SQL_CHARS_MAX = 20_000
CELL_CHARS_MAX = 256
_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)

EXAMPLES = {
    "Newest values": "SELECT device, metric, value, unit, time\nFROM latest\nORDER BY time DESC\nLIMIT 100",
    "Busiest devices of the last hour": (
        "SELECT device, sum(count)::BIGINT AS samples\nFROM windows_1m\nWHERE day >= today() - 1 "
        "AND start >= now() - INTERVAL 1 HOUR\nGROUP BY device\nORDER BY samples DESC\nLIMIT 50"
    ),
    "Records by protocol and quality": (
        "SELECT protocol, quality, sum(records)::BIGINT AS records\nFROM traffic\nGROUP BY ALL\nORDER BY records DESC"
    ),
    "Hours of activity by device": (
        "SELECT device, count(*) AS sessions, sum(duration_s) / 3600 AS hours\nFROM sessions\nGROUP BY device\n"
        "ORDER BY hours DESC\nLIMIT 20"
    ),
}


class NotReading(SparkError):
    """A statement that does not only read, or none, or several."""


def explore(reading: Reading, sql: str, *, rows_max: int = ROWS_SHOWN_MAX) -> Result:
    """Returns the first rows of one statement. Raises `NotReading`, `QueryStopped`, and `SparkError` for mistakes."""
    if len(sql) > SQL_CHARS_MAX:
        raise NotReading(f"a query has at most {SQL_CHARS_MAX:,} characters")
    statements = reading.statements(sql)
    if len(statements) != 1:
        raise NotReading(f"write one statement; these are {len(statements)}")
    if statements[0].type not in _READS:
        raise NotReading(
            "only statements that read are allowed: SELECT, WITH, FROM, DESCRIBE, SHOW, EXPLAIN, and PIVOT with its "
            "values: PIVOT latest ON metric IN ('temperature') USING first(value); without them it creates a type"
        )
    return reading.table(sql, rows_max=rows_max)


def columns_of(reading: Reading) -> dict[str, list[str]]:
    """Returns the columns of each table, with their types."""
    rows = reading.rows(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "ORDER BY table_name, ordinal_position"
    )
    found: dict[str, list[str]] = {name: [] for name in reading.names}
    for row in rows:
        if row["table_name"] in found:
            found[row["table_name"]].append(f"{row['column_name']} {row['data_type']}")
    return found


def cells(rows: pa.Table) -> list[list[str]]:
    """Returns rows as texts, each cut to `CELL_CHARS_MAX` characters."""
    columns = [values_of(column) for column in rows.columns]
    return [[_text(column[at]) for column in columns] for at in range(rows.num_rows)]


def _text(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= CELL_CHARS_MAX else f"{text[:CELL_CHARS_MAX]}…"
