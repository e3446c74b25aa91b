"""zstd, as far as frames need it: one payload in, one payload out, never more than was announced."""

from threading import local

import zstandard

LEVEL = 1  # half the time of zstd's default of 3, for a few per cent more bytes: see docs/decisions/0006
_FRAME_HEADER_BYTES_MAX = 18  # RFC 8878, 3.1.1: magic number and frame header

_per_thread = local()  # contexts are not for two threads at once, and making one costs more than a small payload


def compress(data: bytes, *, level: int = LEVEL) -> bytes:
    """Returns one zstd frame, which announces its content's size (RFC 8878, 3.1.1.1.4)."""
    contexts: dict[int, zstandard.ZstdCompressor] | None = getattr(_per_thread, "compressors", None)
    if contexts is None:
        contexts = _per_thread.compressors = {}
    context = contexts.get(level)
    if context is None:
        context = contexts[level] = zstandard.ZstdCompressor(level=level, write_checksum=False)
    return context.compress(data)


def plain_size(data: bytes | memoryview) -> int:
    """Returns the size that a zstd frame announces for its content. Raises ValueError where it announces none."""
    try:
        size = zstandard.frame_content_size(bytes(data[:_FRAME_HEADER_BYTES_MAX]))
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if size < 0:
        raise ValueError("the content's size is not announced")
    return size


def decompress(data: bytes | memoryview, size: int) -> bytes:
    """Returns the content of a zstd frame, which is `size` bytes. Raises ValueError for anything else."""
    if plain_size(data) != size:
        raise ValueError(f"the content is not the {size} bytes expected")
    context: zstandard.ZstdDecompressor | None = getattr(_per_thread, "decompressor", None)
    if context is None:
        context = _per_thread.decompressor = zstandard.ZstdDecompressor()
    try:
        plain = context.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(plain) != size:
        raise ValueError(f"{len(plain)} bytes where {size} were announced")
    return plain
