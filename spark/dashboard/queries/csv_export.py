"""Rows as CSV (RFC 4180), in UTF-8.

Names and texts come from devices, which are not trusted. A text that a spreadsheet would run as a formula begins with
an apostrophe here.
"""

import csv
import io

import pyarrow as pa

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(rows: pa.Table) -> bytes:
    """Returns the header and the rows."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([_safe(name) for name in rows.column_names])
    columns = [column.to_pylist() for column in rows.columns]
    for at in range(rows.num_rows):
        writer.writerow([_safe(column[at]) for column in columns])
    return out.getvalue().encode("utf-8", "backslashreplace")


def _safe(value: object) -> object:
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value.hex() if isinstance(value, bytes) else value
