"""The offsets of consumer groups: (length of the group's name u16, name in UTF-8, queue u32) -> i64, big-endian."""

import struct
from collections.abc import Sequence
from typing import Any

from store.api.kv_rules import KEY_BYTES_MAX
from store.format.frame import QueueNumber
from store.format.records import GroupDeleted, GroupOffsets
from store.log.run import FrameRun

_OFFSET = struct.Struct(">q")


class GroupsView:
    """Offsets by group and queue."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def apply(self, txn: Any, runs: Sequence[FrameRun]) -> None:
        """Makes the changes that some runs hold."""
        for run in runs:
            for _, record in run.records:
                if not isinstance(record, GroupOffsets | GroupDeleted) or len(record.group.encode()) > KEY_BYTES_MAX:
                    continue
                prefix = _prefix(record.group)
                if isinstance(record, GroupOffsets):
                    for queue, offset in record.offsets.items():
                        txn.put(prefix + queue.to_bytes(4, "big"), _OFFSET.pack(offset), db=self._db)
                    continue
                with txn.cursor(db=self._db) as cursor:
                    found = cursor.set_range(prefix)
                    while found and cursor.key().startswith(prefix):
                        found = cursor.delete()

    def get(self, txn: Any, group: str) -> dict[QueueNumber, int]:
        """Returns the offsets of a group, by queue; empty for one that never committed."""
        prefix = _prefix(group)
        offsets = {}
        with txn.cursor(db=self._db) as cursor:
            found = cursor.set_range(prefix)
            while found and (key := cursor.key()).startswith(prefix):
                offsets[QueueNumber(int.from_bytes(key[-4:], "big"))] = _OFFSET.unpack(cursor.value())[0]
                found = cursor.next()
        return offsets


def _prefix(group: str) -> bytes:
    name = group.encode()
    return len(name).to_bytes(2, "big") + name
