"""The addresses that were published to: b"a" + address in UTF-8 -> log offset u64, big-endian, of the first word of it.

The store cannot read addresses out of messages; publishers note each (`LogCalls.note_addresses`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

from store.api.kv_rules import KEY_BYTES_MAX
from store.format.records import AddressesSeen
from store.log.run import FrameRun

_PREFIX = b"a"  # LMDB has no empty keys


def listable(address: str) -> bool:
    """Returns whether an address is short enough to be listed."""
    return len(address.encode()) <= KEY_BYTES_MAX


class AddressesView:
    """Known addresses, in order."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Adds the addresses that some runs name; those too long to be listed are skipped."""
        for run in runs:
            for at, record in run.records:
                if isinstance(record, AddressesSeen):
                    for address in filter(listable, record.addresses):
                        txn.put(_PREFIX + address.encode(), at.frame.to_bytes(8, "big"), overwrite=False, db=self._db)

    def has(self, txn: Any, address: str) -> bool:
        """Returns whether an address is known; it has to be `listable`."""
        return txn.get(_PREFIX + address.encode(), db=self._db) is not None

    def after(self, txn: Any, prefix: str, after: str) -> Iterator[str]:
        """Yields addresses that begin with `prefix` and are greater than `after`, ascending."""
        start, skip = _PREFIX + prefix.encode(), _PREFIX + after.encode()
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(max(start, skip))
            if found and after and cursor.key() == skip:
                found = cursor.next()
            while found and (key := cursor.key()).startswith(start):
                yield key[1:].decode()
                found = cursor.next()
