"""The hooks by which a store tells its replication of the log (docs/decisions/0011)."""

from typing import Protocol

from store.base.errors import StoreError
from store.format.frame import LogOffset


class StoreListener(Protocol):
    """Told on the event loop, in the order of the log; must neither wait nor raise.

    `written` comes before the `flushed` of the same end, and either may skip an end if a later one follows.
    """

    def written(self, end: LogOffset) -> None:
        """Tells a master that its log is written up to here for good, though perhaps not on disk; `read_log` has it."""

    def flushed(self, end: LogOffset) -> None:
        """Tells that the log is on this disk up to here."""

    def damaged(self) -> None:
        """Tells that the log is damaged where that was not known before; `LocalStore.damages` has the places.

        Also called with the values known when the store is opened, perhaps before `open` has returned.
        """

    def failed(self, error: StoreError) -> None:
        """Tells that nothing is stored any more until the store is opened again. Called once."""


class ReplicationHooks(StoreListener, Protocol):
    """The hooks of a store with replicas: they get the log's progress, and answer about damage."""

    def lost(self, at: LogOffset) -> bool:
        """Returns whether no replica has the data damaged at a log offset: readers get an error and do not wait.

        Any thread may ask.
        """
