"""Properties cut down to the size of a consumer's frames: a content header is one frame (AMQP 0-9-1, 4.2.6.1)."""

from typing import Final

from adapters.amqp.codec.property_fields import layout
from adapters.amqp.codec.wire import field_spans, write_table

_LEFT_OUT: Final = "x-headers-left-out"  # how many headers the frame had no room for


def fitted(raw: bytes, size_max: int) -> bytes:
    """Returns properties that are longer than `size_max` bytes without the headers that do not fit.

    Headers are kept in their order, each one there is room for, and `x-headers-left-out` says how many are missing. All
    other properties are short: they fit any frame.
    """
    before: list[bytes] = [raw[:2]]
    after: list[bytes] = []
    headers_at, at = 0, 2
    for name, reader in layout(int.from_bytes(raw[:2], "big")):
        start, (_, at) = at, reader(raw, at)
        if name == "headers":
            headers_at = start
        else:
            (after if headers_at else before).append(raw[start:at])
    assert headers_at, "properties without headers fit any frame"
    marker = write_table({_LEFT_OUT: 0})[4:]
    room = size_max - sum(len(part) for part in (*before, *after, marker)) - 4
    kept: list[bytes] = []
    left_out = 0
    for start, end in field_spans(raw, headers_at):
        if end - start <= room:
            kept.append(raw[start:end])
            room -= end - start
        else:
            left_out += 1
    table = b"".join((*kept, write_table({_LEFT_OUT: left_out})[4:]))
    return b"".join((*before, len(table).to_bytes(4, "big"), table, *after))
