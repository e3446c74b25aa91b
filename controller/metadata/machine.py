"""The state machine that the controllers' log is for, and its newest commands for those who follow."""

from collections.abc import Callable
from typing import Any

from controller.api.client import KnownMetadata
from controller.api.commands import ForgetReplica, RemoveGroup, RetireReplica, decode_command
from controller.metadata.feed import CommandFeed
from controller.metadata.growth import forgotten
from controller.metadata.state import MetadataState
from controller.raft import Entry, Snapshot


class Metadata:
    """A `driver.Machine`. `state` is another object after a snapshot was installed.

    The owner sets `on_move`, which is called then.
    """

    def __init__(self) -> None:
        self.state = MetadataState()
        self.feed = CommandFeed()
        self.news = False  # a command was applied; the listener takes it back
        self.forgotten: list[tuple[int, int]] = []  # (group, replica) that are no more; likewise
        self._applied = 0
        self._shown: tuple[int, bytes] | None = None  # the newest snapshot that was made, and its index
        self.on_move: Callable[[], None] = lambda: None

    def apply(self, entry: Entry) -> Any:
        """Applies a command. Raises `ControllerError`: refused, `ControllerDamaged`: a newer version's."""
        command = decode_command(entry.data)
        self.state.chain(entry.data)
        self.feed.add(entry.index, entry.data, self.state.digest)
        self.news = True
        self._applied = entry.index
        if isinstance(command, ForgetReplica | RetireReplica):
            self.forgotten.append((command.group, command.replica))
        elif isinstance(command, RemoveGroup) and command.number in self.state.groups:
            self.forgotten += [(command.number, one.id) for one in self.state.groups[command.number].replicas]
        return self.state.apply(command)

    def restore(self, snapshot: Snapshot) -> None:
        """Replaces the state by that of a snapshot. Raises `ControllerDamaged`."""
        self.state = MetadataState.restore(snapshot.data) if snapshot.data else MetadataState()
        self.feed.restart(snapshot.index, self.state.digest)
        self.news = True
        self._applied = snapshot.index
        self._shown = None

    def check(self, known: KnownMetadata, applied: int) -> None:
        """Checks that the state, of all entries up to `applied`, holds metadata that is known elsewhere.

        Raises `MetadataForgotten`. Digests of commands that are older than the feed are not known any more.
        """
        index = known.index
        if index > applied:
            raise forgotten(f"there were {index} entries, and now there are {applied}")
        if known.next_queue > self.state.next_queue:
            raise forgotten(f"the next queue had number {known.next_queue}, and now has {self.state.next_queue}")
        if known.digest and self.feed.digest_at(index) not in {b"", known.digest}:
            raise forgotten(f"entries up to {index} were others than they are now")

    def snapshot(self) -> bytes:
        """Returns the whole state, after all that was applied."""
        data = self.state.snapshot()
        self._shown = self._applied, data
        return data

    def shown(self) -> tuple[int, bytes]:
        """Returns a snapshot, and its index, from which `feed` goes on: made once for all who come together."""
        if self._shown is None or self._shown[0] < self.feed.start:
            self.snapshot()
        assert self._shown is not None
        return self._shown

    def moved(self) -> None:
        """Takes the news: more is applied, or the role, the leader or the membership has changed."""
        self.on_move()
