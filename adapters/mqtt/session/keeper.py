"""Persist before sending: packets that may be sent only once the session is durable."""

from collections.abc import Callable, Sequence

from adapters.mqtt.connecting.connection_context import ConnectionContext
from gateway.domain.errors import Refusal
from gateway.port.adapter import Outcome
from gateway.port.sessions import SaveSession

WAITING_COUNT_MAX = 2_048  # packets that wait for saves; twice the messages in flight by default, which wait, too

Snapshot = Callable[[], bytes]
Step = Callable[[], None]


class SessionKeeper:
    """Holds output back until a `SaveSession` that covers it has completed.

    One save is in progress at a time; whatever waits meanwhile shares the next one, which stores the parts that have
    changed: `state`, the subscriptions, or `exchanges`. A session that ends with its connection is never saved, and
    nothing waits.
    """

    __slots__ = (
        "_context",
        "_exchanges",
        "_exchanges_changed",
        "_expiry_s",
        "_marked",
        "_refused",
        "_saved_now",
        "_saving",
        "_state",
        "_state_changed",
        "_state_late",
        "_steps",
        "_steps_saving",
        "_waiting",
    )

    def __init__(
        self,
        context: ConnectionContext,
        *,
        state: Snapshot,
        exchanges: Snapshot,
        saved: Step,
        refused: Callable[[Refusal], None],
    ) -> None:
        self._context = context
        self._state = state
        self._exchanges = exchanges
        self._saved_now = saved  # called when a save is done, before the next one begins
        self._refused = refused
        self._marked = False  # the session's messages have marks
        self._expiry_s: int | None = 0
        self._state_changed = self._exchanges_changed = False  # in a way that no save covers
        self._state_late = False  # the same, and more of it is to come
        self._waiting: list[bytes] = []  # for a save that is not in progress; none when nothing has changed
        self._saving: list[bytes] | None = None  # for the one in progress; None: there is none
        self._steps: list[Step] = []  # as `_waiting`, steps to take then
        self._steps_saving: Sequence[Step] = ()

    def begin(self, expiry_s: int | None) -> None:
        """Begins to keep a session that lasts this long behind its connection."""
        self._expiry_s = expiry_s

    def after_save(self, packet: bytes) -> None:
        """Sends a packet once the exchanges as they are now are durable."""
        if self._context.durable:
            self._waiting.append(packet)
            self._exchanges_changed = True
        else:
            self._context.out.append(packet)

    def after_saving_state(self, packet: bytes) -> None:
        """Sends a packet once the subscriptions as they are now are durable."""
        if self._context.durable:
            self._waiting.append(packet)
            self._state_changed = True
        else:
            self._context.out.append(packet)

    def then(self, step: Step, *, state: bool = False) -> None:
        """Does something once the exchanges, or with `state` the subscriptions, as they are now are durable."""
        if not self._context.durable:
            step()
            return
        self._steps.append(step)
        if state:
            self._state_changed = True
        else:
            self._exchanges_changed = True

    def mark(self, step: Step) -> None:
        """Does something once it is durable that messages of this session have marks."""
        self._marked = True
        self.then(step, state=True)

    def save_soon(self) -> None:
        """Asks for a save of the exchanges, which have changed; nothing waits for it."""
        self._exchanges_changed = self._context.durable

    def save_state_later(self) -> None:
        """Notes changed subscriptions: the next save, or the one at the end of the connection, stores them."""
        self._state_late = self._context.durable

    def save_state_soon(self) -> None:
        """Asks for a save of the subscriptions, which have changed; nothing waits for it."""
        self._state_changed = self._context.durable

    @property
    def owes(self) -> bool:
        """Returns whether `flush` would begin a save."""
        return (self._state_changed or self._exchanges_changed) and self._saving is None

    @property
    def behind(self) -> bool:
        """Returns whether something has changed that no save in progress covers."""
        return self._state_changed or self._exchanges_changed or self._state_late

    @property
    def full(self) -> bool:
        """Returns whether so many packets wait for saves that the client should send nothing that adds to them."""
        saving = self._saving
        return saving is not None and len(saving) + len(self._waiting) >= WAITING_COUNT_MAX

    def flush(self) -> None:
        """Begins a save if there is anything to save."""
        if self.owes:
            self._saving, self._waiting = self._waiting, []
            self._steps_saving, self._steps = self._steps, []
            self._context.call(self._request(), self._saved)

    def save_now(self, expiry_s: int | None) -> None:
        """Saves once more on the way out, with nothing to send behind it."""
        self._expiry_s = expiry_s
        self._exchanges_changed = True
        self._context.call(self._request())

    def last_words(self) -> None:
        """Saves once more, for a connection that is gone."""
        self.save_now(self._expiry_s)

    def forget(self) -> None:
        """Forgets the sources of the state, as nothing is saved any more."""
        self._state = self._exchanges = bytes
        self._saved_now, self._refused = _nothing, _nothing

    def _request(self) -> SaveSession:
        request = SaveSession(
            state=self._state() if self._state_changed or self._state_late else None,
            exchanges=self._exchanges() if self._exchanges_changed else None,
            expiry_s=self._expiry_s,
            marked=self._marked,
        )
        self._state_changed = self._exchanges_changed = self._state_late = False
        return request

    def _saved(self, outcome: Outcome, _now_ms: int) -> None:
        covered, self._saving = self._saving, None
        if outcome.error is not None:
            self._refused(outcome.error)
            return
        self._saved_now()
        self._context.out += covered or ()
        steps, self._steps_saving = self._steps_saving, ()
        for step in steps:
            step()
        self.flush()


def _nothing(*_: object) -> None:
    pass
