"""The fields of a content header's properties, and changes that leave all other fields as the bytes they are."""

import struct
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Final

from adapters.amqp.codec.wire import (
    TRAILING,
    Reader,
    Table,
    field_spans,
    malformed,
    mark_timestamps,
    read_octet,
    read_short_string,
    read_table,
    read_timestamp,
    short_string,
    write_table,
)

# The properties of class basic by their flag's bit, the highest first (AMQP 0-9-1, 1.8).
FIELDS: Final[dict[int, tuple[str, Reader]]] = {
    15: ("content_type", read_short_string),
    14: ("content_encoding", read_short_string),
    13: ("headers", read_table),
    12: ("delivery_mode", read_octet),
    11: ("priority", read_octet),
    10: ("correlation_id", read_short_string),
    9: ("reply_to", read_short_string),
    8: ("expiration", read_short_string),
    7: ("message_id", read_short_string),
    6: ("timestamp", read_timestamp),
    5: ("type", read_short_string),
    4: ("user_id", read_short_string),
    3: ("app_id", read_short_string),
    2: ("cluster_id", read_short_string),
}


@lru_cache(256)
def layout(flags: int) -> tuple[tuple[str, Reader], ...]:
    """Returns the fields that property flags announce, and their readers. Raises ValueError for flags of none."""
    if flags & 3:  # more flag words, or a flag that class basic does not have
        raise ValueError("properties that class basic does not have")
    return tuple(field for bit, field in FIELDS.items() if flags >> bit & 1)


def read_fields(raw: bytes) -> dict[str, Any]:
    """Returns the fields of properties by their names. Raises `ProtocolError` (FRAME_ERROR)."""
    found: dict[str, Any] = {}
    at = 2
    try:
        for name, reader in layout(int.from_bytes(raw[:2], "big")):
            found[name], at = reader(raw, at)
        if at != len(raw):
            raise ValueError(TRAILING if at < len(raw) else "there are no property flags")
    except (ValueError, IndexError, struct.error) as error:
        raise malformed("content header", error) from error
    return found


def with_timestamps(raw: bytes, headers: Table) -> Table:
    """Returns the headers of properties that have been read before, with a `Timestamp` for each timestamp."""
    marked, at = dict(headers), 2
    for name, reader in layout(int.from_bytes(raw[:2], "big")):
        if name == "headers":
            mark_timestamps(marked, raw, at)
            break
        _, at = reader(raw, at)
    return marked


def edited(
    raw: bytes,
    *,
    added: Table | None = None,
    removed: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
    fields: Mapping[str, str | None] | None = None,
) -> bytes:
    """Returns properties that have been read before, with other headers and fields.

    Headers of the same names as those `added`, and those `removed`, are left out; those `renamed` stay under another
    name. `fields` are short strings, None for a field that is left out.
    """
    added, renamed, fields = added or {}, renamed or {}, fields or {}
    flags, at = int.from_bytes(raw[:2], "big"), 2
    packed = {name: b"" for name, _ in FIELDS.values()}
    kept: list[bytes] = []
    for name, reader in layout(flags):
        start, (_, at) = at, reader(raw, at)
        packed[name] = raw[start:at]
        if name == "headers":
            for a, b in field_spans(raw, start):
                said, value_at = read_short_string(raw, a)
                if said in renamed:
                    kept.append(short_string(renamed[said]) + raw[value_at:b])
                elif said not in added and said not in removed:
                    kept.append(raw[a:b])
    table = b"".join((write_table(added)[4:], *kept))
    packed["headers"] = len(table).to_bytes(4, "big") + table if table else b""
    for name, text in fields.items():
        packed[name] = b"" if text is None else short_string(text)
    flags = sum([1 << bit for bit, (name, _) in FIELDS.items() if packed[name]])
    return b"".join((flags.to_bytes(2, "big"), *packed.values()))
