"""Small files of a data directory: written whole or not at all, and with a checksum.

A line of JSON, a space, and the CRC-32C of the JSON in eight hexadecimal digits.
"""

import logging
from pathlib import Path
from typing import TypeVar

import msgspec
from google_crc32c import value

from store.disk.files import Files, write_whole

logger = logging.getLogger(__name__)

_FILE_BYTES_MAX = 1 << 20

T = TypeVar("T")


def read_small_file(files: Files, path: Path, kind: type[T]) -> T | None:
    """Reads the file's content; returns None where there is none or it is damaged, which is logged. Raises OSError."""
    if path.name not in files.names(path.parent):
        return None
    file = files.open(path)
    try:
        text, _, checksum = file.pread(min(file.size(), _FILE_BYTES_MAX), 0).rstrip(b"\n").rpartition(b" ")
    finally:
        file.close()
    if checksum == b"%08x" % value(text):
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.MsgspecError:
            pass
    logger.error("a file is damaged", extra={"path": str(path)})
    return None


def write_small_file(files: Files, path: Path, content: msgspec.Struct) -> None:
    """Replaces a file, durably and in one step. Raises OSError."""
    written = path.with_name(path.name + ".new")
    if written.name in files.names(path.parent):  # left by a write that was cut short
        files.unlink(written)
    text = msgspec.json.encode(content)
    file = files.open(written, create=True)
    try:
        write_whole(file, b"%s %08x\n" % (text, value(text)), 0)
        file.sync()
    finally:
        file.close()
    files.rename(written, path)
    files.sync_directory(path.parent)
