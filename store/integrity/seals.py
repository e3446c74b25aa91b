"""Seals: digests of the log's closed segments, so that a missing, short, long or exchanged file is recognised.

A seal is made from the segment itself, once, when it is closed, by reading it: that is its first verification. The
seals of two replicas can be compared where they begin and end at the same log offsets.

The file `seals` of the data directory is written anew each time, and may be thrown away: seals are made again from
the log then. Layout, little-endian:

    header   16 B  magic u32 | version u32 | crc32c u32 | count u32
    entries  count x 48 B: start u64 | end u64 | digest 16 B | chain 16 B

`crc32c` covers the bytes behind it. `digest` is BLAKE2b over the headers of the segment's frames, each of which holds
the checksum of its body; `chain` is BLAKE2b over the chain of the seal before (nothing for the first one made) and the
digest.
"""

import logging
import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from google_crc32c import value

from store.disk.files import Files, write_whole
from store.format.frame import LogOffset

logger = logging.getLogger(__name__)

SEALS_FILE = "seals"
DIGEST_BYTES = 16
_HEADER = struct.Struct("<IIII")
_ENTRY = struct.Struct("<QQ16s16s")
_MAGIC = 0x4C534748  # "HGSL"
_VERSION = 1
_CRC_END = 12  # the checksum covers the bytes behind it
_FILE_BYTES_MAX = 64 << 20  # the seals of more than a million segments
assert _HEADER.size == 16
assert _ENTRY.size == 48


class Seal(NamedTuple):
    """A closed segment: where it begins and ends, the digest of its frames, and that of all sealed so far."""

    start: LogOffset
    end: LogOffset
    digest: bytes
    chain: bytes


class Sealing:
    """The digest of an open segment."""

    def __init__(self, start: LogOffset) -> None:
        self.start = start
        self.at = start
        self._digest = blake2b(digest_size=DIGEST_BYTES)

    def add(self, header: bytes, end: LogOffset) -> None:
        """Adds the next frame, by the bytes of its header."""
        self._digest.update(header)
        self.at = end

    @property
    def digest(self) -> bytes:
        """The digest of the added frames."""
        return self._digest.digest()

    def seal(self, before: Seal | None) -> Seal:
        """Returns the seal of the added frames, behind another seal."""
        digest = self.digest
        return Seal(self.start, self.at, digest, chain_of(before, digest))


def chain_of(before: Seal | None, digest: bytes) -> bytes:
    """Returns the chain's value at a segment with a digest that follows a sealed one."""
    return blake2b((b"" if before is None else before.chain) + digest, digest_size=DIGEST_BYTES).digest()


def read_seals(files: Files, path: Path) -> list[Seal]:
    """Returns the seals in a file, oldest first; none where there is no file, or a damaged one, which is logged."""
    try:
        if path.name not in files.names(path.parent):
            return []
        file = files.open(path)
        try:
            data = file.pread(min(file.size(), _FILE_BYTES_MAX), 0)
        finally:
            file.close()
    except OSError as error:
        logger.error(
            "the file `seals` cannot be read: the digests of segments are computed again", extra={"error": str(error)}
        )
        return []
    found = _parse(data)
    if found is None:
        logger.error(
            "the file `seals` is damaged: the digests of segments are computed again", extra={"path": str(path)}
        )
    return found or []


def _parse(data: bytes) -> list[Seal] | None:
    if len(data) < _HEADER.size:
        return None
    magic, version, crc, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or version != _VERSION or len(data) != _HEADER.size + count * _ENTRY.size:
        return None
    if value(data[_CRC_END:]) != crc:
        return None
    seals = [Seal(LogOffset(s), LogOffset(e), d, c) for s, e, d, c in _ENTRY.iter_unpack(data[_HEADER.size :])]
    adjoin = all(one.end == two.start for one, two in pairwise(seals))
    return seals if adjoin and all(one.start < one.end for one in seals) else None


class SealFile:
    """The seals of one log; each begins where the one before ends. Any thread may read `all`."""

    def __init__(self, files: Files, path: Path) -> None:
        self._files = files
        self._path = path
        self._seals: Sequence[Seal] = read_seals(files, path)  # replaced, never changed

    @property
    def all(self) -> Sequence[Seal]:
        """The seals, oldest first."""
        return self._seals

    def of(self, start: LogOffset) -> Seal | None:
        """Returns the seal of the segment that begins at a log offset."""
        seals = self._seals
        i = bisect_left(seals, start, key=lambda seal: seal.start)
        return seals[i] if i < len(seals) and seals[i].start == start else None

    def add(self, seal: Seal) -> None:
        """Keeps one more. A file that cannot be written is logged: the seal is made again after a restart."""
        assert not self._seals or self._seals[-1].end == seal.start
        self._replace([*self._seals, seal])

    def drop_before(self, first: LogOffset) -> None:
        """Forgets the segments that are deleted: those that end at or before a log offset."""
        if self._seals and self._seals[0].end <= first:
            self._replace([one for one in self._seals if one.end > first])

    def drop_from(self, at: LogOffset) -> None:
        """Forgets the segments that reach beyond a log offset, where the log is to be cut. Raises OSError."""
        if self._seals and self._seals[-1].end > at:
            kept = [one for one in self._seals if one.end <= at]
            self._save(kept)
            self._seals = kept

    def _replace(self, seals: Sequence[Seal]) -> None:
        self._seals = seals
        try:
            self._save(seals)
        except OSError as error:
            logger.warning("the file `seals` cannot be written", extra={"error": str(error)})

    def _save(self, seals: Iterable[Seal]) -> None:
        entries = b"".join(_ENTRY.pack(*seal) for seal in seals)
        content = (len(entries) // _ENTRY.size).to_bytes(4, "little") + entries
        data = _HEADER.pack(_MAGIC, _VERSION, value(content), 0)[:_CRC_END] + content
        written = self._path.with_name(self._path.name + ".new")
        if written.name in self._files.names(written.parent):
            self._files.unlink(written)
        file = self._files.open(written, create=True)
        try:
            write_whole(file, data, 0)
            file.sync()
        finally:
            file.close()
        self._files.rename(written, self._path)
        self._files.sync_directory(self._path.parent)
