"""QoS 2 from the client: every message is in the log once, whatever happens to the gateway meanwhile (MQTT 5.0, 4.3.3).

    PUBLISH -> storing -> PUBREC -> received -> PUBREL -> PUBCOMP

Every message is a use of its packet identifier, and uses are counted. A session that lasts has its uses marked in the
log, in the frame of the message itself (`gateway.port.marks`), so the PUBREC follows the frame at once. The saved
session has the uses that it knows of and their outcomes; the marks tell of the others: a marked use was received. Marks
are kept in slots, one for each `Publish`; a slot is not needed any more, and is free, when a finished save holds its
content.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from adapters.mqtt.connecting.connection_context import ConnectionContext
from adapters.mqtt.session.keeper import SessionKeeper
from adapters.mqtt.session.session_state import PacketExchanges
from gateway.port.marks import NO_MARKS, Fence, Mark, Marks, OpenedMarks

SLOTS_COUNT_MAX = 16  # in use; from then on every new one asks for a save, which frees them

Indexed = tuple[int, bytes]  # the index of a message among others, and its packet identifier

_ID_BYTES = 2  # of a mark; the rest is the use
_USE_BYTES = 8


class Exact:
    """The packet identifiers that the client uses for QoS 2, from their PUBLISH to their PUBREL."""

    __slots__ = (
        "_context",
        "_covering",
        "_fence",
        "_free",
        "_keeper",
        "_key",
        "_marking",
        "_next_slot",
        "_received",
        "_slots",
        "_storing",
        "_uses",
        "halves",
        "waits",
    )

    def __init__(self, context: ConnectionContext, keeper: SessionKeeper) -> None:
        self._context = context
        self._keeper = keeper
        self._key = ""  # of the session's marks; "": it has none
        self._fence: Fence | None = None  # proves that the session is ours to write for
        self._marking = False  # the session is known to have marks, so that they will be looked for
        self.waits = False  # the first QoS 2 message waits for that
        self._uses = 0  # that there have been
        self._storing: dict[bytes, int] = {}  # the log has not confirmed the message: its use
        self._received: dict[bytes, None] = {}  # it has: a PUBLISH with this identifier is a repetition
        self.halves: dict[
            bytes, frozenset[int]
        ] = {}  # of those storing, which only these groups have been found to have
        self._slots: dict[int, Sequence[int]] = {}  # uses that marks tell of, and no save that is done
        self._free: list[int] = []  # slots that are not in use, a heap
        self._next_slot = 0  # neither in use nor free, as all from here on
        self._covering: Sequence[int] = ()  # slots that are free when the save in progress is done

    def __len__(self) -> int:
        return len(self._storing) + len(self._received)

    def begin(self, marks: OpenedMarks = NO_MARKS) -> None:
        """Begins a session; `restore` follows if it is to go on. Otherwise old marks say nothing of new uses."""
        self._key, self._marking = marks.key if self._context.durable else "", marks.used
        self._fence = marks.fence
        self._uses = max([_use_of(mark) + 1 for mark in marks.found], default=0)

    # ---- PUBLISH

    def admit(self) -> bool:
        """Returns whether messages can be stored. A session's first one waits until its marks are known to exist."""
        if self._marking or not self._key:
            return True
        if not self.waits:
            self.waits = True
            self._keeper.mark(self._admitted)
        return not self.waits

    def _admitted(self) -> None:
        self._marking, self.waits = True, False

    def is_received(self, identifier: bytes) -> bool:
        """Returns whether the log has the message of this identifier."""
        return identifier in self._received

    def is_storing(self, identifier: bytes) -> bool:
        """Returns whether the message of this identifier is on its way to the log."""
        return identifier in self._storing and identifier not in self.halves

    def use(self, identifier: bytes) -> None:
        """Notes a message that is about to be stored."""
        if identifier not in self.halves:
            self._storing[identifier] = self._uses
            self._uses += 1

    def marks(self, exact: Sequence[Indexed]) -> Marks | None:
        """Returns the marks of messages that are stored together."""
        if not self._key:
            return None
        uses = [self._storing[identifier] for _, identifier in exact]
        slot = heappop(self._free) if self._free else self._next_slot
        self._next_slot = max(self._next_slot, slot + 1)
        self._slots[slot] = uses
        if len(self._slots) > SLOTS_COUNT_MAX:
            self._keeper.save_soon()
        of = {index: i + use.to_bytes(_USE_BYTES, "big") for (index, i), use in zip(exact, uses, strict=True)}
        return Marks(self._key, slot, of, self.halves.pop(exact[0][1], frozenset()), self._fence)

    # ---- outcomes

    def stored(self, identifiers: Iterable[bytes]) -> None:
        """Notes that the log has these messages."""
        for identifier in identifiers:
            del self._storing[identifier]
            self._received[identifier] = None

    def refused(self, identifier: bytes) -> None:
        """Notes that the log does not have a message; the client gets the refusal."""
        del self._storing[identifier]

    def release(self, identifier: bytes) -> bool:
        """Handles PUBREL: the identifier is free again. Returns whether it was used for a message that the log has."""
        if identifier not in self._received:
            return False
        del self._received[identifier]
        return True

    # ---- state that outlives the connection

    def save(self) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...], int]:
        """Returns `PacketExchanges.received`, `storing` and `uses`."""
        storing = set(self._storing.values())
        self._covering = [slot for slot, uses in self._slots.items() if storing.isdisjoint(uses)]
        received = tuple([int.from_bytes(identifier, "big") for identifier in self._received])
        return received, tuple([(int.from_bytes(i, "big"), use) for i, use in self._storing.items()]), self._uses

    def saved(self) -> None:
        """Records that the last result of `save` is durable."""
        for slot in self._covering:
            if self._slots.pop(slot, None) is not None:
                heappush(self._free, slot)
        self._covering = ()

    def restore(self, state: PacketExchanges, marks: Iterable[Mark]) -> None:
        """Restores the session's stored exchanges, and newer ones from its marks."""
        self._uses = state.uses
        self._received = {packet_id.to_bytes(_ID_BYTES, "big"): None for packet_id in state.received}
        unknown = {use for _, use in state.storing}
        found: dict[int, tuple[Mark, set[int]]] = {}
        slots: dict[int, list[int]] = {}
        for mark in marks:
            use = _use_of(mark)
            if use >= state.uses or use in unknown:
                found.setdefault(use, (mark, set()))[1].add(mark.group)
                slots.setdefault(mark.slot, []).append(use)
        for use, (mark, groups) in sorted(found.items()):
            identifier = mark.mark[:_ID_BYTES]
            self._uses = max(self._uses, use + 1)
            if len(groups) >= mark.groups:
                self._received[identifier] = None
            else:
                self._storing[identifier], self.halves[identifier] = use, frozenset(groups)
        self._slots.update(slots)
        self._next_slot = max(slots, default=-1) + 1
        self._free = [slot for slot in range(self._next_slot) if slot not in slots]
        if slots:
            self._keeper.save_soon()


def _use_of(mark: Mark) -> int:
    return int.from_bytes(mark.mark[_ID_BYTES:], "big")
