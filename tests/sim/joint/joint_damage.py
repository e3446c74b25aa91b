"""Storage that lies, in a simulated replica: frames that are not on disk as they were written, and ends that are lost.

What is read of a spoiled frame are real bytes, for the product's checksums to find; or nothing, where the disk says so.
"""

from contextlib import suppress
from enum import Enum, auto

from store.base.errors import CorruptFrame
from store.format.frame import Frame, LogOffset
from store.integrity.ledger import Damage
from store.log.segment import segment_name
from tests.sim.joint.joint_log import CountedLog, header_of


class Fault(Enum):
    """The kinds of damage to a frame."""

    FLIPPED = auto()
    LOST = auto()  # a write that was synced and is not there
    MISDIRECTED = auto()  # another one has come in its place
    UNREADABLE = auto()  # EIO


class Surface:
    """The damage of a replica's log, and the part of it that the replica knows."""

    def __init__(self, log: CountedLog, chance) -> None:
        self._log = log
        self._chance = chance
        self.begin_anew()

    def begin_anew(self, floor: LogOffset | None = None) -> None:
        self.spoiled: dict[int, tuple[Fault, bytes]] = {}  # by where a frame begins: what is read there
        self.known: dict[int, int] = {}  # damages that were reported: from where to where
        self.floor = floor or LogOffset(0)  # how far the log is known to have been on this disk
        self.repaired = 0

    # ---- what happens to it

    def spoil(self, start: int) -> None:
        frame = self._log.frames[self._log.starts.index(start)]
        fault = self._chance.choice(list(Fault))
        there = bytearray(frame)
        if fault is Fault.FLIPPED:
            there[self._chance.randrange(len(there))] ^= 1 << self._chance.randrange(8)
        elif fault is Fault.LOST:
            there = bytearray(len(frame))
        elif fault is Fault.MISDIRECTED:
            other = self._chance.choice(self._log.frames)
            there[: len(other)] = other[: len(there)]
            there = there if there != frame else bytearray(len(frame))
        self.spoiled[start] = fault, bytes(there)

    def lose_end(self, at: LogOffset) -> None:
        self.floor = max(self.floor, self._log.durable)
        self._log.truncate(at)
        self.cut(at)

    def cut(self, end: LogOffset) -> None:
        """Ends the log here."""
        self.spoiled = {start: one for start, one in self.spoiled.items() if start < end}
        self.known = {start: min(to, end) for start, to in self.known.items() if start < end}

    def trim(self, first: LogOffset) -> None:
        self.spoiled = {start: one for start, one in self.spoiled.items() if start >= first}
        self.known = {max(start, first): to for start, to in self.known.items() if to > first}

    # ---- what its replica does

    def is_sound(self, frame: bytes, start: int) -> bool:
        """Returns whether a frame is read as it was written; reports it if not."""
        if start not in self.spoiled:
            return True
        fault, there = self.spoiled[start]
        if fault is not Fault.UNREADABLE:
            with suppress(CorruptFrame):
                assert Frame.parse(there, log_offset=start) is None, "damage that no checksum tells"
        self.report(start, len(frame))
        return False

    def report(self, start: int, size: int) -> None:
        self.known[start] = start + size

    def scrub(self) -> None:
        """Finds all damage."""
        for start in self.spoiled:
            self.report(start, len(self._log.frames[self._log.starts.index(start)]))

    def mend(self, start: int, data: bytes) -> None:
        """Writes what was there before the damage. As in the product, it does nothing where no damage is known any
        more.

        Raises `CorruptFrame`: retention has deleted where it begins.
        """
        known = [at for at in self.known if start <= at < start + len(data)]
        if not known:
            return
        if min(known) > start:
            raise CorruptFrame(start, "no damage is here")
        at = start
        while at < start + len(data):
            size = header_of(data[at - start :]).size_bytes
            frame = Frame.parse(data[at - start :][:size], log_offset=at)
            assert frame is not None
            index = self._log.starts.index(at)
            assert self._log.frames[index] == frame.data, "something else is written in place of a damaged frame"
            assert at in self.known, "a repair of what is not damaged"
            self.spoiled.pop(at, None)
            del self.known[at]
            self.repaired += 1
            at = frame.end

    @property
    def is_short(self) -> bool:
        """Returns whether the log has lost its end and has not got it back."""
        return self.floor > self._log.durable

    @property
    def damages(self) -> list[Damage]:
        """Returns the damage that the replica knows, by log offset; neighbours are one."""
        found: list[list[int]] = []
        for start, end in sorted(self.known.items()):
            if found and found[-1][1] == start:
                found[-1][1] = end
            else:
                found.append([start, end])
        if self.is_short:
            found.append([self._log.durable, self.floor])
        return [Damage(segment_name(a), LogOffset(a), LogOffset(b), "damaged", "scrub") for a, b in found]
