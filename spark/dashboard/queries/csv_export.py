"""Rows as CSV (RFC 4180), in UTF-8.

Names and texts come from devices, which are not trusted. A text that a spreadsheet would run as a formula begins with
an apostrophe here.
"""

import csv
import io

import pyarrow as pa

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def values_of(column: pa.ChunkedArray) -> list[object]:
    """Returns a column's values; a date or time that Python has none for, as an infinite one, is a text."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value(one) for one in column]


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        return "(out of range)"


def to_csv(rows: pa.Table) -> bytes:
    """Returns the header and the rows."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_safe(name) for name in rows.column_names])
    columns = [values_of(column) for column in rows.columns]
    for at in range(rows.num_rows):
        writer.writerow([_safe(column[at]) for column in columns])
    return out.getvalue().encode("utf-8", "backslashreplace")


def _safe(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value.hex() if isinstance(value, bytes) else value
