"""SQL statements of the command line, and their rows as text."""

import csv
import io
import logging
import re
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Row, SparkSession

from spark.errors import SparkError
from spark.job.failures import gist
from spark.tables.schemas import SPECS

_QUERY_LOG: Final = "SQLQueryContextLogger"  # PySpark's: writes each error with Java's stack before it is raised
_NOT_FOUND: Final = re.compile(r"^\[TABLE_OR_VIEW_NOT_FOUND\].*`(\w+)` cannot be found")
CELL_CHARS_MAX: Final = 60  # of a cell of a table; the rest is cut off


def split(text: str) -> list[str]:
    """Returns the statements of a text: a semicolon ends one, unless it stands in quotes or in a comment."""
    found, begin, quote, at = [], 0, "", 0
    while at < len(text):
        one = text[at]
        if quote:
            end = text.startswith(quote, at)
            if one == "\\" and quote in "'\"":
                at += 1
            elif end:
                at += len(quote) - 1
                quote = ""
        elif one in "'\"`":
            quote = one
        elif text.startswith("--", at):
            quote = "\n"
        elif text.startswith("/*", at):
            quote = "*/"
        elif one == ";":
            found.append(text[begin:at])
            begin = at + 1
        at += 1
    return [statement.strip() for statement in (*found, text[begin:]) if statement.strip()]


def text_of(session: SparkSession, statement: str, form: str, limit: int, *, tables_in: str = "") -> Iterator[str]:
    """Yields the lines of a statement's result, at most `limit` rows. Raises `SparkError`.

    `tables_in` is where the telemetry tables were looked for, for the error of one that is not there yet.
    """
    PySparkLogger.getLogger(_QUERY_LOG).setLevel(logging.CRITICAL)
    try:
        frame = session.sql(statement)
        rows = frame.limit(limit + 1).collect() if frame.columns else []
    except PySparkException as error:
        raise SparkError(_why(gist(str(error)), tables_in)) from error
    yield from _WRITERS[form](frame.columns, rows[:limit])
    if len(rows) > limit:
        yield f"-- more than {limit} rows: the rest is left out (--limit)"


def _why(told: str, tables_in: str) -> str:
    """Returns Spark's sentence, or one of ours for a telemetry table that the job has not written yet."""
    found = _NOT_FOUND.search(told)
    if found is None or found[1] not in SPECS or not tables_in:
        return told
    return (
        f"there is no table {found[1]} in {tables_in} yet: headgate spark telemetry writes it, and option tables names "
        "another place"
    )


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it."""
    if isinstance(value, Row):
        return {name: _plain(one) for name, one in value.asDict().items()}
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return _shown(bytes(value))
    return value


def _shown(body: bytes) -> str:
    """Returns bytes as text where they are text, else in hexadecimal."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return "0x" + body.hex()
    return text if text.isprintable() else "0x" + body.hex()


def _cell(value: Any) -> str:
    value = _plain(value)
    if value is None:
        return ""
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    return value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode().strip('"')


def _table(names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    cells = [[_cut(_cell(value)) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[n]) for row in cells), 1) if cells else len(name) for n, name in enumerate(names)
    ]
    if names:
        yield "  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip()
        yield "  ".join("-" * width for width in widths)
    for row in cells:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _cut(text: str) -> str:
    text = text.replace("\n", " ")
    return text if len(text) <= CELL_CHARS_MAX else text[: CELL_CHARS_MAX - 1] + "…"


def _csv(names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    for row in (names, *([_cell(value) for value in row] for row in rows)):
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(row)
        yield line.getvalue()


def _json(_names: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    for row in rows:
        yield msgspec.json.encode(_plain(row), enc_hook=str).decode()


_WRITERS: Final = {"table": _table, "csv": _csv, "json": _json}
