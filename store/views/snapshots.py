"""Read transactions that outlive a call."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Any

from store.base.errors import SnapshotLost


class ViewsSnapshot:
    """The views as they were at one moment. While it is open, LMDB cannot reuse pages that have changed since.

    Several threads may read, one at a time. The views take it back when their map has to grow, which no transaction
    may see: reading then raises `SnapshotLost`.
    """

    def __init__(self, txn: Any, gate: Condition, forget: Callable[["ViewsSnapshot"], None]) -> None:
        self._txn = txn
        self._gate = gate  # the views' own
        self._forget = forget
        self._reading = False
        self._lost = False
        self._closed = False

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Opens the transaction. Raises `SnapshotLost`."""
        with self._gate:
            self._gate.wait_for(lambda: not self._reading)
            if self._lost or self._closed:
                raise SnapshotLost("the views have grown; read again from the beginning")
            self._reading = True
        try:
            yield self._txn
        finally:
            with self._gate:
                self._reading = False
                self._end_if_due()
                self._gate.notify_all()

    def close(self) -> None:
        """Gives it back, at once or when its reader has ended. Again does nothing."""
        with self._gate:
            self._closed = True
            self._end_if_due()

    def take_back(self) -> None:
        """Waits for its reader and ends it. The gate is held."""
        self._lost = True
        self._gate.wait_for(lambda: not self._reading)
        self._end_if_due()

    def _end_if_due(self) -> None:
        if (self._lost or self._closed) and not self._reading and self._txn is not None:
            self._txn.close()
            self._txn = None
            self._forget(self)
