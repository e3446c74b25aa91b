"""Checksums of a view's entries, and the counts and the known damage of the view.

An entry is `key -> value | CRC-32C u32, little-endian`. The checksum is of the view's name, the key and the value, so
that neither a flipped bit nor an entry of another view passes.
"""

import struct
from typing import Any, Protocol

from google_crc32c import extend, value

from store.base.errors import ViewsDamaged

CRC_BYTES = 4
RESIDUE = value(bytes(CRC_BYTES))  # of any data with its checksum behind it
_POLYNOMIAL = 0x82F63B78  # reflected
_TRIED_BYTES = 64 << 10  # from the end of a value; takes some 50 ms
_KNOWN_MAX = 1024  # damaged values that are not judged again
_MASK = (1 << 64) - 1
_SUMS = struct.Struct(">QQ")  # number of entries, sum of their checksums
SUMS_BYTES = _SUMS.size
assert RESIDUE == 0x48674BC7


class Report(Protocol):
    """Notes damage of a view; returns the error to raise."""

    def __call__(self, view: str, why: str, found_by: str = "read", /) -> ViewsDamaged:
        """Takes a report of damage; `found_by`: "read" or "verification"."""


def seal(salt: int, key: bytes, data: bytes) -> bytes:
    """Returns a value with its checksum; `salt` is the checksum of the view's name."""
    crc: int = extend(salt, key + data)
    return data + crc.to_bytes(CRC_BYTES, "little")


def unseal(salt: int, key: bytes, held: bytes) -> bytes | None:
    """Returns the value; None where it differs from the sealed one."""
    return held[:-CRC_BYTES] if len(held) >= CRC_BYTES and extend(salt, key + held) == RESIDUE else None


def _is_in_value(salt: int, key: bytes, held: bytes) -> bool:
    """Returns whether a single flipped bit of the value explains the wrong checksum: then the key is sound.

    CRC-32C tells all single flips apart; they are tried from the last bit on (Koopman, "32-bit cyclic redundancy
    codes for Internet applications", DSN 2002).
    """
    found, flip = extend(salt, key + held) ^ RESIDUE, _POLYNOMIAL
    for _ in range(8 * min(len(held), _TRIED_BYTES)):
        if flip == found:
            return True
        flip = (flip >> 1) ^ (_POLYNOMIAL if flip & 1 else 0)
    return False


def crc_of(held: bytes) -> int:
    """Returns the checksum that a sealed value carries."""
    return int.from_bytes(held[-CRC_BYTES:], "little")


class Table:
    """One sub-database: its handle, and the number and sum of the entries that it should hold.

    One thread writes. `walked_to` is how far a walk has come, exclusive; changes before it change the counts of the
    walk too.
    """

    __slots__ = (
        "_known",
        "_new",
        "_walked_new",
        "absent",
        "broken",
        "count",
        "guarded",
        "handle",
        "name",
        "report",
        "salt",
        "summed",
        "total",
        "walked_count",
        "walked_to",
        "walked_total",
    )

    def __init__(self, name: str, handle: Any, report: Report, *, summed: bool = True, guarded: bool = True) -> None:
        self.name = name
        self.summed = summed  # else only the number is known, not the sum: 0
        self.guarded = guarded  # else new entries are not looked at again, as that took longer than putting them
        self.absent: set[bytes] = set()  # keys that were found to be missing in the open transaction that writes
        self._known: dict[bytes, int] = {}  # keys whose values alone are damaged, and what their checksums come to
        self.handle = handle
        self.salt: int = value(name.encode())
        self.report = report
        self.broken = ""  # why nothing of it can be served: unknown entries are missing
        self.count = self.total = 0  # committed
        self._new = (0, 0)  # count and total that the open transaction adds
        self.walked_to = b""
        self.walked_count = self.walked_total = 0
        self._walked_new = (0, 0)

    def changed(self, key: bytes, count: int, total: int) -> None:
        """Counts so many entries more in the open transaction, at this key, and so much more in the sum."""
        if not self.summed:
            total = 0
        before = self._new
        self._new = (before[0] + count, before[1] + total)
        if key < self.walked_to:
            before = self._walked_new
            self._walked_new = (before[0] + count, before[1] + total)

    def note_damage(self, key: bytes, held: bytes, found_by: str = "read") -> ViewsDamaged:
        """Notes a damaged entry, and returns the error to raise. If its key may be damaged, the table serves nothing.

        Another key than the one that was written is not found by a search for that.
        """
        found = extend(self.salt, key + held)
        if self._known.get(key) != found:
            if not _is_in_value(self.salt, key, held):
                return self.note_broken(
                    f"an entry, found at key {key[:64].hex()}, differs from the one written, as perhaps does its key",
                    found_by,
                )
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key] = found
        return self.report(self.name, f"the value of key {key[:64].hex()} differs from the one written", found_by)

    def note_disorder(self, key: bytes, found_by: str = "read") -> ViewsDamaged:
        """Notes that an entry does not lie where a search for its key ends, and returns the error to raise."""
        return self.note_broken(
            f"keys lead searches astray at key {key[:64].hex()}, so that some entries are not found", found_by
        )

    def note_broken(self, why: str, found_by: str = "read") -> ViewsDamaged:
        """Lets the table serve nothing from now on, and returns the error to raise."""
        self.broken = why
        return self.report(self.name, why, found_by)

    def sums(self) -> bytes:
        """Returns number and sum, the open transaction's changes included."""
        return _SUMS.pack(self.count + self._new[0], (self.total + self._new[1]) & _MASK)

    def load(self, sums: bytes) -> None:
        """Begins with the sums that `sums` returned."""
        self.count, self.total = _SUMS.unpack(sums)

    def commit(self) -> None:
        """Takes over the counts of the open transaction, which is committed."""
        self.count, self.total = self.count + self._new[0], (self.total + self._new[1]) & _MASK
        self.walked_count += self._walked_new[0]
        self.walked_total += self._walked_new[1]
        self._new = self._walked_new = (0, 0)
        self.absent.clear()

    def abort(self) -> None:
        """Forgets the counts of the open transaction, which is given up."""
        self._new = self._walked_new = (0, 0)
        self.absent.clear()
