"""A file that holds keys and values of one revision, for another store to load.

Layout, little-endian:

    header  32 B  magic "HGKV" | version u16 | reserved u16 | revision u64 | exported_at_ms u64 | reserved u32
                  | crc32c u32 of all before
    blocks        length u32 | sequence u32 | count u32 | crc32c u32 of these three and the payload
                  | payload: a MessagePack array of `count` entries, by namespace and key
    the end       a block whose count is 0xFFFFFFFF; its payload: entries u64 | blocks u64

Every block can be checked alone, so damage is known by its place; a block left out, repeated or cut off is known by
its sequence number and by the end. The file appears under its name when it is whole and on disk, not before.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import IO, Final, NamedTuple

import msgspec
from google_crc32c import value as crc32c

from store.api.client import StoreClient
from store.api.keys import Entry, Put
from store.base.errors import DamagedExport
from store.format.frame import FRAME_BYTES_MAX

VERSION: Final = 1
BLOCK_BYTES: Final = 1 << 20  # of entries in a block; the one that reaches it is its last
BATCH_BYTES: Final = 1 << 20  # of keys and values stored by one change in an import
BATCH_COUNT_MAX: Final = 256  # likewise
PAGE_COUNT: Final = 1_000

_HEADER = Struct("<4sHHQQI")
_BLOCK = Struct("<III")
_CRC = Struct("<I")
_END = Struct("<QQ")
_MAGIC: Final = b"HGKV"
_END_COUNT: Final = 0xFFFF_FFFF
_PAYLOAD_BYTES_MAX: Final = FRAME_BYTES_MAX + BLOCK_BYTES  # a block ends with the entry that fills it
assert _HEADER.size + _CRC.size == 32


class _Kept(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry in a block."""

    namespace: str
    key: str
    value: bytes
    revision: int
    create_revision: int
    version: int
    expires_at_ms: int | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Kept]).decode


class Exported(NamedTuple):
    """The summary of an export: its revision, its time, and how many entries the file holds."""

    revision: int
    exported_at_ms: int
    entries: int


class Imported(NamedTuple):
    """The outcome of an import: how many entries of the file were stored, unchanged or expired."""

    stored: int
    unchanged: int  # the store had them already, as after an import that was broken off
    expired: int


# ---- writing


class ExportWriter:
    """Writes an export to `file`, entries in the order they are added."""

    def __init__(self, file: IO[bytes], *, revision: int, now_ms: int) -> None:
        self._file = file
        self._kept: list[_Kept] = []
        self._size_bytes = 0
        self._sequence = 0
        self.entries = 0
        header = _HEADER.pack(_MAGIC, VERSION, 0, revision, now_ms, 0)
        file.write(header + _CRC.pack(crc32c(header)))

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds some entries."""
        for one in entries:
            self._kept.append(
                _Kept(
                    one.namespace,
                    one.key,
                    one.value,
                    one.revision,
                    one.create_revision,
                    one.version,
                    one.expires_at_ms,
                )
            )
            self._size_bytes += len(one.key) + len(one.value)
            if self._size_bytes >= BLOCK_BYTES:
                self._flush()

    def finish(self) -> None:
        """Writes the last block, and the end."""
        self._flush()
        self._write(_END_COUNT, _END.pack(self.entries, self._sequence))

    def _flush(self) -> None:
        if self._kept:
            self.entries += len(self._kept)
            self._write(len(self._kept), _encode(self._kept))
            self._kept, self._size_bytes = [], 0

    def _write(self, count: int, payload: bytes) -> None:
        head = _BLOCK.pack(len(payload), self._sequence, count)
        self._file.write(head + _CRC.pack(crc32c(head + payload)))
        self._file.write(payload)
        self._sequence += 1


@contextmanager
def exporting(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing that replaces the file of its name when all went well. Raises OSError, with its name."""
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, ConnectionError):
            error.filename = error.filename or str(path)
        raise


async def export_to(
    store: StoreClient, path: Path, *, now_ms: int, namespaces: Sequence[str] | None = None
) -> Exported:
    """Writes the state as it is now, of some namespaces (None: all that there are), to a file.

    One page is in memory at a time. Raises the errors of `KeyCalls.hold` and `KeyCalls.range`, and OSError.
    """
    at = await store.keys.hold()
    try:
        names = [one.name for one in await store.keys.namespaces()] if namespaces is None else sorted(set(namespaces))
        with exporting(path) as file:
            writer = ExportWriter(file, revision=at, now_ms=now_ms)
            for name in names:
                after, more = None, True
                while more:
                    page = await store.keys.range(namespace=name, after=after, limit=PAGE_COUNT, at_revision=at)
                    writer.add(page.entries)
                    more, after = page.more, page.entries[-1].key if page.entries else None
            writer.finish()
    finally:
        store.keys.release(at)
    return Exported(at, now_ms, writer.entries)


# ---- reading


def read_export(file: IO[bytes]) -> Iterator[Exported | list[Entry]]:
    """Yields the file's header (`entries` 0), then its entries by block, last its totals.

    A file must be read to its end before anything of it is believed. Raises `DamagedExport`.
    """
    file.seek(0)
    raw = file.read(_HEADER.size + _CRC.size)
    if len(raw) < _HEADER.size + _CRC.size or raw[:4] != _MAGIC:
        raise DamagedExport(0, "not an export of keys and values")
    if _CRC.unpack_from(raw, _HEADER.size)[0] != crc32c(raw[: _HEADER.size]):
        raise DamagedExport(0, "header checksum")
    _, version, _, revision, exported_at_ms, _ = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise DamagedExport(4, f"version {version}; this program reads version {VERSION}")
    yield Exported(revision, exported_at_ms, 0)
    entries = sequence = 0
    while True:
        at = file.tell()
        count, payload = _read_block(file, at, sequence)
        if count == _END_COUNT:
            if payload != _END.pack(entries, sequence):
                raise DamagedExport(at, "the end record does not match the entries before it")
            if file.read(1):
                raise DamagedExport(file.tell() - 1, "something follows the end")
            yield Exported(revision, exported_at_ms, entries)
            return
        found = _read_entries(payload, count, at)
        yield found
        entries += count
        sequence += 1


def _read_block(file: IO[bytes], at: int, sequence: int) -> tuple[int, bytes]:
    head = file.read(_BLOCK.size + _CRC.size)
    if len(head) < _BLOCK.size + _CRC.size:
        raise DamagedExport(at, "the file is cut off")
    length, number, count = _BLOCK.unpack_from(head)
    payload = file.read(length) if length <= _PAYLOAD_BYTES_MAX else b""
    if _CRC.unpack_from(head, _BLOCK.size)[0] != crc32c(head[: _BLOCK.size] + payload):
        raise DamagedExport(at, "the file is cut off" if len(payload) < length else "block checksum")
    if number != sequence:
        raise DamagedExport(at, f"block {number} where {sequence} should be")
    return count, payload


def _read_entries(payload: bytes, count: int, at: int) -> list[Entry]:
    try:
        kept = _decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DamagedExport(at, f"entries that cannot be read: {error}") from error
    if len(kept) != count:
        raise DamagedExport(at, f"{len(kept)} entries where {count} should be")
    return [
        Entry(one.key, one.value, one.revision, one.create_revision, one.version, one.expires_at_ms, one.namespace)
        for one in kept
    ]


def batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Yields entries as they are stored together: of one namespace, and not too many."""
    batch: list[Entry] = []
    size = 0
    for one in entries:
        full = len(batch) >= BATCH_COUNT_MAX or (batch and size + len(one.value) > BATCH_BYTES)
        if batch and (full or one.namespace != batch[0].namespace):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.key) + len(one.value)
    if batch:
        yield batch


async def import_from(store: StoreClient, path: Path, *, now_ms: int) -> Imported:
    """Stores the entries of a file, and replaces the store's values of their keys; other keys stay.

    The whole file is checked first: nothing of a damaged one is stored. Then entries are stored some hundred at a time,
    those together atomically. An import that was broken off is repeated: entries that the store has with the same value
    and expiry are skipped. Revisions and versions are the importing store's own. Raises `DamagedExport`, OSError, and
    the errors of `KeyCalls.put` and `KeyCalls.transact`.
    """
    stored = unchanged = expired = 0
    with path.open("rb") as file:
        for _ in read_export(file):
            pass
        for block in read_export(file):
            if isinstance(block, Exported):
                continue
            for batch in batches(block):
                wanted = [one for one in batch if one.expires_at_ms is None or one.expires_at_ms > now_ms]
                expired += len(batch) - len(wanted)
                changed = [one for one in wanted if not await _has(store, one)]
                unchanged += len(wanted) - len(changed)
                stored += len(changed)
                await _store(store, changed)
    return Imported(stored, unchanged, expired)


async def _has(store: StoreClient, wanted: Entry) -> bool:
    found = await store.keys.get(wanted.key, namespace=wanted.namespace)
    return found is not None and (found.value, found.expires_at_ms) == (wanted.value, wanted.expires_at_ms)


async def _store(store: StoreClient, entries: Sequence[Entry]) -> None:
    if len(entries) == 1:  # as large as it may be: a transaction's record is a little larger
        one = entries[0]
        await store.keys.put(one.key, one.value, namespace=one.namespace, expires_at_ms=one.expires_at_ms)
    elif entries:
        puts = [Put(one.key, one.value, one.expires_at_ms) for one in entries]
        await store.keys.transact({}, puts, namespace=entries[0].namespace)
