"""The state machine that the controllers' log is for, and its newest commands for those who follow."""

from collections.abc import Callable

from controller.commands import decode_command
from controller.feed import Feed
from controller.raft import Entry, Snapshot
from controller.state import Answer, MetadataState

__all__ = ["Metadata"]


class Metadata:
    """A `driver.Machine`. `state` is another object after a snapshot was installed.

    Whoever wants to hear of it sets `on_move`.
    """

    def __init__(self) -> None:
        self.state = MetadataState()
        self.feed = Feed()
        self.news = False  # something was applied; for whoever hears of it to take back
        self.on_move: Callable[[], None] = lambda: None

    def apply(self, entry: Entry) -> Answer:
        """Apply a command. Raises `ControllerError`: refused, `ControllerDamaged`: a newer version's."""
        command = decode_command(entry.data)
        self.feed.add(entry.index, entry.data)
        self.news = True
        return self.state.apply(command)

    def restore(self, snapshot: Snapshot) -> None:
        """Be what a snapshot says. Raises `ControllerDamaged`."""
        self.state = MetadataState.restore(snapshot.data) if snapshot.data else MetadataState()
        self.feed.restart(snapshot.index)
        self.news = True

    def snapshot(self) -> bytes:
        """The whole state."""
        return self.state.snapshot()

    def moved(self) -> None:
        """More is applied, or the role, the leader or the membership has changed."""
        self.on_move()
