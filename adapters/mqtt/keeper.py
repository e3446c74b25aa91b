"""Persist before sending: what may be said only once the session's state is durable."""

from collections.abc import Callable

from adapters.mqtt.link import Link
from gateway.errors import Refusal
from gateway.port import Outcome, SaveSession

__all__ = ["Keeper"]


class Keeper:
    """Holds output back until a `SaveSession` that covers it has completed.

    One save is under way at a time; whatever waits meanwhile shares the next one. A session that ends with its
    connection is never saved, and nothing waits.
    """

    __slots__ = ("_expiry_s", "_link", "_refused", "_saving", "_snapshot", "_waiting")

    def __init__(self, link: Link, snapshot: Callable[[], bytes], refused: Callable[[Refusal], None]) -> None:
        self._link = link
        self._snapshot = snapshot
        self._refused = refused
        self._expiry_s: int | None = 0
        self._waiting: list[bytes] = []  # not covered by the save under way
        self._saving: list[bytes] | None = None  # covered by it; None: no save is under way

    def begin(self, expiry_s: int | None) -> None:
        """The session is open and lasts this long behind its connection."""
        self._expiry_s = expiry_s

    def after_save(self, packet: bytes) -> None:
        """Send a packet once the state as it is now is durable."""
        if self._link.durable:
            self._waiting.append(packet)
        else:
            self._link.out.append(packet)

    @property
    def owes(self) -> bool:
        """Whether `flush` would begin a save."""
        return bool(self._waiting) and self._saving is None

    @property
    def behind(self) -> bool:
        """Whether the state has changed in a way that no save under way covers."""
        return bool(self._waiting)

    def flush(self) -> None:
        """Begin a save if anything waits for one."""
        if self._waiting and self._saving is None:
            self._saving, self._waiting = self._waiting, []
            self._link.call(SaveSession(state=self._snapshot(), expiry_s=self._expiry_s), self._saved)

    def save_now(self, expiry_s: int | None) -> None:
        """Save once more on the way out, with nothing to send behind it."""
        self._expiry_s = expiry_s
        self._link.call(SaveSession(state=self._snapshot(), expiry_s=expiry_s))

    def last_words(self) -> None:
        """Save once more if the state may have changed since the last save."""
        self.save_now(self._expiry_s)

    def _saved(self, outcome: Outcome, _now_ms: int) -> None:
        covered, self._saving = self._saving, None
        if outcome.error is not None:
            self._refused(outcome.error)
            return
        self._link.out += covered or ()
        self.flush()
