"""A simulated controller's directory in real files, which the product's storage writes and which are damaged.

Controllers of a simulation read what is in memory. Each save goes to the files, too; whenever a controller falls they
are opened again and have to hold the same. Damage happens to the files of one that is down: opened by a process of
their own, they hold the same still, or are refused with a sentence that says what to do. Anything else is a state of
before, with which a controller would vote twice.
"""

import random
from collections import deque
from enum import Enum, auto
from pathlib import Path

from controller.raft import Ready
from controller.raft.errors import StorageFailed
from controller.raft.lmdb_storage import LmdbStorage
from controller.raft.sealing import SEAL
from tests.sim.raft.raft_cluster import RaftDisk
from tests.support.controller.raft_probe import DIED, MAP_SIZE_BYTES, REFUSED, Probe, digest_of

PAGE_BYTES, SLOT_BYTES = 4096, 512
DATA = "data.mdb"
SEALS_KEPT = 4
OLDER = 0.1  # how likely the database is kept as it is after a save, for a write that is lost later
_PROBE = Probe()


class RaftFileHarm(Enum):
    """The kinds of damage to a file."""

    FLIPPED = auto()
    ZEROED = auto()  # a page
    MISDIRECTED = auto()  # a page is in the place of another one
    LOST = auto()  # some pages, or all, are as they were before
    SHORTENED = auto()
    GONE = auto()


class Verdict(Enum):
    """The outcomes of opening a damaged directory."""

    SAME = auto()  # the damage is where nothing is
    REFUSED = auto()
    DIED = auto()  # the process that opened it


class FiledDisk(RaftDisk):
    """A controller's disk whose contents are in the files of a directory, too."""

    def __init__(self, directory: Path, number: int, first, incarnation: str, chance: random.Random) -> None:
        super().__init__(first, incarnation)
        self.directory, self._number, self._chance = directory, number, chance
        self._seals: deque[bytes] = deque(maxlen=SEALS_KEPT)
        self._older = b""
        self.failing = False  # the next write that has to be synced meets an error
        self.refused = False  # it is damaged, and whoever opens it says so
        self._storage = self._opened(first)

    @classmethod
    def restored(cls, directory: Path, number: int, copy: RaftDisk, chance: random.Random) -> "FiledDisk":
        """Returns a disk made of a copy that `back_up` has kept."""
        directory.mkdir()
        for name, data in copy.kept.items():
            (directory / name).write_bytes(data)
        made = cls(directory, number, None, copy.incarnation(), chance)
        for name in ("_snapshot", "_hard", "_synced", "_base", "_entries"):
            setattr(made, name, getattr(copy, name))
        made._check()
        return made

    def _opened(self, first=None) -> LmdbStorage:
        return LmdbStorage.open(
            self.directory,
            self._number,
            first=first,
            incarnation=self._incarnation,
            map_size_bytes=MAP_SIZE_BYTES,
        )

    def files(self) -> dict[str, bytes]:
        """Returns what the files hold."""
        return {name: (self.directory / name).read_bytes() for name in (DATA, SEAL)}

    def _check(self) -> None:
        assert digest_of(self._storage) == digest_of(self), f"controller {self._number} has other files than it wrote"

    def close(self) -> None:
        """Gives the files back."""
        if not self.refused:
            self._storage.close()

    # ---- what a controller does

    def save(self, ready: Ready) -> None:
        failing = self.failing and ready.must_sync
        if failing:
            self.failing = False
            if self._chance.random() < 0.5:
                raise StorageFailed("EIO: nothing is kept")
        super().save(ready)
        self._storage.save(ready)
        if ready.must_sync:
            self._seals.append((self.directory / SEAL).read_bytes())
            if self._chance.random() < OLDER:
                self._older = (self.directory / DATA).read_bytes()
        if failing:
            raise StorageFailed("EIO: it is kept, and nobody knows")

    def renew(self, incarnation: str) -> None:
        super().renew(incarnation)
        self._storage.renew(incarnation)

    def back_up(self) -> None:
        if not self.refused:
            super().back_up()
            self.copies[-1].kept = self.files()

    # ---- what happens to it

    def fall(self, *, power: bool) -> None:
        """Ends the process. Without power the seal, which no call syncs, may be an older one, in each of its slots."""
        self.lose_power()
        self.failing = False
        self._storage.close()
        if power and self._seals:
            slots = [self._chance.choice(self._seals)[at : at + SLOT_BYTES] for at in (0, SLOT_BYTES)]
            (self.directory / SEAL).write_bytes(b"".join(slots))
        self._storage = self._opened()
        self._check()

    def harm(self, harm: RaftFileHarm | None = None, name: str = "") -> Verdict:
        """Damages a file of one that is down; what whoever opens it finds."""
        assert not self.refused
        self._storage.close()
        before = self.files()
        name = name or self._chance.choice([DATA, DATA, SEAL])
        path = self.directory / name
        harm = harm or self._chance.choice(list(RaftFileHarm))
        if harm is RaftFileHarm.GONE:
            path.unlink()
        else:
            path.write_bytes(self.harmed(harm, before[name], name))
        found = _PROBE.ask(self.directory, self._number)
        if found in {REFUSED, DIED}:
            self.refused = True
            return Verdict.REFUSED if found == REFUSED else Verdict.DIED
        assert found == digest_of(self), f"controller {self._number} takes damaged files for sound: {harm} of {name}"
        for name, data in before.items():
            (self.directory / name).write_bytes(data)
        self._storage = self._opened()
        return Verdict.SAME

    def harmed(self, harm: RaftFileHarm, data: bytes, name: str) -> bytes:
        """Returns what becomes of a file's bytes by a damage."""
        chance, there = self._chance, bytearray(data)
        if harm is RaftFileHarm.SHORTENED:
            return data[: chance.randrange(len(data))]
        if harm is RaftFileHarm.FLIPPED:
            for _ in range(chance.choice([1, 1, 8, 64])):
                there[chance.randrange(len(there))] ^= 1 << chance.randrange(8)
            return bytes(there)
        size = PAGE_BYTES if name == DATA else SLOT_BYTES
        places = range(0, len(there), size)
        at = chance.choice(places)
        if harm is RaftFileHarm.ZEROED:
            there[at : at + size] = bytes(len(there[at : at + size]))
        elif harm is RaftFileHarm.MISDIRECTED:
            other = chance.choice(places)
            there[at : at + size] = data[other : other + size]
        else:
            older = self._older if name == DATA else (self._seals[0] if self._seals else data)
            some = places if chance.random() < 0.5 else [at]
            for place in some if older else ():
                there[place : place + size] = older[place : place + size] or there[place : place + size]
        return bytes(there)
