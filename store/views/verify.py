"""Verification of the views: a walk over every entry, some at a time, while they are in use.

It checks the checksum of every entry, and of every view the number of entries and the sum of their checksums with the
counts kept as they were written. So entries that are missing are found too, and pages that are older than they should
be. A step keeps the writer waiting; entries written between two steps to where the walk has been are counted there.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import Lock
from time import perf_counter

import lmdb
from google_crc32c import extend

from store.integrity.tables import RESIDUE, Table, crc_of
from store.integrity.views import ViewsHealth
from store.views.layout import TABLES
from store.views.sealed import ReadTxn

BUSY_S_MAX = 0.02  # of a step; the writer waits for its end
PASS_INTERVAL_MS_MIN = 60 * 1000  # from the beginning of one pass to that of the next
PASS_INTERVAL_MS_MAX = 3600 * 1000
REST_TIMES = 1_000  # between the two so many times as long as the pass took: a thousandth of a core
_LOOK = 64  # entries between two looks at the clock
_MASK = (1 << 64) - 1


class ViewsWalk:
    """A pass over all views, again and again. `step` is called by one thread."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        health: ViewsHealth,
        turn: Lock,
        *,
        reading: Callable[[], AbstractContextManager[ReadTxn]],
    ) -> None:
        self._tables = tables
        self._health = health
        self._reading = reading
        self._turn = turn  # the writer has it in a transaction
        self._number = 0  # of the table in `TABLES` that the walk is in; their number: at the end
        self._began_ms: int | None = None
        self._busy_s = 0.0  # of this pass so far
        self._interval_ms = PASS_INTERVAL_MS_MIN
        self.passes = 0

    def step(self, now_ms: int) -> None:
        """Verifies for a moment, or waits for the next pass to be due."""
        if self._number == len(TABLES):
            if self._began_ms is not None and 0 <= now_ms - self._began_ms < self._interval_ms:
                return
            self._number, self._began_ms = 0, now_ms
        elif self._began_ms is None:
            self._began_ms = now_ms
        self.run(BUSY_S_MAX)

    def run(self, busy_s: float) -> bool:
        """Verifies for so long at most; returns whether the pass has ended."""
        with self._turn, self._health.at_risk(), self._reading() as txn:
            began = perf_counter()
            done = self._walk(txn, began + busy_s)
            self._busy_s += perf_counter() - began
        if not done:
            return False
        rest_ms = round(self._busy_s * 1000 * REST_TIMES)
        self._interval_ms = min(max(rest_ms, PASS_INTERVAL_MS_MIN), PASS_INTERVAL_MS_MAX)
        self._busy_s = 0.0
        self.passes += 1
        self._health.verified()
        return True

    def _walk(self, txn: ReadTxn, deadline: float) -> bool:
        """Continues until a time; returns whether all tables are done."""
        while self._number < len(TABLES):
            if not self._table(txn, TABLES[self._number], lambda: perf_counter() >= deadline):
                return False
            self._number += 1
        return True

    def _table(self, txn: ReadTxn, name: str, over: Callable[[], bool]) -> bool:
        """Continues in a table; returns whether it is done."""
        table = self._tables[name]
        count, total, at = table.walked_count, table.walked_total, table.walked_to
        salt = table.salt
        try:
            for key, held in txn.held(table, at):
                if key < at:
                    table.note_disorder(key, "verification")
                if extend(salt, key + held) != RESIDUE:
                    table.note_damage(key, held, "verification")
                count, total, at = count + 1, total + crc_of(held), key + b"\0"
                if not count % _LOOK and over():
                    table.walked_count, table.walked_total, table.walked_to = count, total, at
                    return False
        except lmdb.Error as error:
            table.broken = table.broken or f"it cannot be read: {error}"
        else:
            if count != table.count or (table.summed and total & _MASK != table.total):
                table.broken = f"{table.count} entries should be there, and {count} are, or older ones in their place"
        table.walked_count, table.walked_total, table.walked_to = 0, 0, b""
        if table.broken:
            table.report(name, table.broken, "verification")
        return True
