"""The places of keys in the pages of the views' database."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from store.views.layout import TABLES

PAGE_BYTES = 4_096
_BRANCH = 1


class KeyPlace(NamedTuple):
    """A key in a page that is in use."""

    table: str
    branch: bool
    at: int  # in the file
    key: bytes


def key_places(file: Path) -> list[KeyPlace]:
    """Returns the keys in all pages in use of a data file, those of the views' own records excepted."""
    data = file.read_bytes()
    newest = max((0, PAGE_BYTES), key=lambda at: struct.unpack_from("<Q", data, at + 16 + 128)[0])
    (main,) = struct.unpack_from("<Q", data, newest + 16 + 24 + 48 + 40)
    found: list[KeyPlace] = []
    for name, tree in _nodes(data, main, "", []):
        root = struct.unpack_from("<Q", tree, 40)[0]
        if name.decode() in TABLES and root < 1 << 48:
            list(_nodes(data, root, name.decode(), found))
    return found


def _nodes(data: bytes, page: int, table: str, found: list[KeyPlace]) -> Iterator[tuple[bytes, bytes]]:
    """Yields keys and values of a tree, and adds the places of its keys."""
    at = page * PAGE_BYTES
    flags, lower = struct.unpack_from("<HH", data, at + 10)
    for i in range((lower - 16) // 2):
        node = at + struct.unpack_from("<H", data, at + 16 + 2 * i)[0]
        low, high, top, size = struct.unpack_from("<HHHH", data, node)
        key = data[node + 8 : node + 8 + size]
        if size:
            found.append(KeyPlace(table, bool(flags & _BRANCH), node + 8, key))
        if flags & _BRANCH:
            yield from _nodes(data, low | high << 16 | top << 32, table, found)
        else:
            yield key, data[node + 8 + size : node + 8 + size + (low | high << 16)]
