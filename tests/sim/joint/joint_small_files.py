"""The small files of a simulated replica's data directory, which are damaged while it is down: epochs, identity.

The files are in memory, and the product reads and writes them as it does on a disk.
"""

import errno
import random
from enum import Enum, auto
from pathlib import Path

from tests.sim.store.faulty_files import Disk

NAMES = ("epochs", "replica", "replica.copy", "group", "unclean")
VERSIONS_KEPT = 4
_IDENTITY = {"replica", "replica.copy"}
EPOCHS = ("epochs", "epochs.copy")


class SmallFileHarm(Enum):
    """The kinds of damage to a file."""

    FLIPPED = auto()
    SHORTENED = auto()
    ZEROED = auto()
    MISDIRECTED = auto()  # another file's contents are there
    GONE = auto()
    LOST = auto()  # a write: the file is as it was before, and nothing tells so


class SmallFiles:
    """The files of one replica. `harmed` is the one that is damaged and has not been read since."""

    def __init__(self, files: Disk, directory: Path, seed: str) -> None:
        self._files, self._directory = files, directory
        self.chance, self._copies = random.Random(seed), random.Random(f"{seed} copies")
        self.harmed = ""
        self._versions: dict[str, list[bytes]] = {}  # the last VERSIONS_KEPT of each file
        self.may_fail = False  # an operation on a file meets an error some time, as it was told to

    def there(self) -> list[str]:
        """Returns the names of the files that are there, in order; of an identity's two, none where one is missing."""
        names = set(self._files.names(self._directory))
        if not names.issuperset(_IDENTITY):
            names -= _IDENTITY
        return [name for name in NAMES if name in names]

    def look(self) -> None:
        """Remembers what the files hold now."""
        for name in {*self.there(), *EPOCHS}.intersection(self._files.names(self._directory)):
            held, data = self._versions.setdefault(name, []), self._files.data(self._directory / name)
            if not held or held[-1] != data:
                held.append(data)
                del held[:-VERSIONS_KEPT]

    def harm(self, harm: SmallFileHarm | None = None, *names: str) -> None:
        """Damages a file of a replica that is down, or those of some names: of the two of epochs either, or both."""
        chance, there = self.chance, self.there()
        if not there:
            return
        self.harmed = names[0] if names else chance.choice(there)
        harm = harm or chance.choice(list(SmallFileHarm))
        if not names:
            names = (self.harmed,) if self.harmed not in EPOCHS else self.of_the_epochs(harm)
        for name in names:
            path = self._directory / name
            if harm is SmallFileHarm.GONE:
                self._files.lose(path)
            else:
                self._files.put(path, self._harmed(harm, self._files.data(path), name))

    def of_the_epochs(self, harm: SmallFileHarm) -> tuple[str, ...]:
        """Returns the names of those to damage: one write that is lost leaves one of them whole."""
        if not set(EPOCHS).issubset(self._files.names(self._directory)):
            return tuple(name for name in EPOCHS if name in self._files.names(self._directory))
        both = harm is not SmallFileHarm.LOST and self._copies.random() < 0.5
        return EPOCHS if both else (self._copies.choice(EPOCHS),)

    def _harmed(self, harm: SmallFileHarm, data: bytes, name: str) -> bytes:
        chance, names = self.chance, self.there()
        if harm is SmallFileHarm.LOST:
            return chance.choice(self._versions.get(name) or [data])
        if harm is SmallFileHarm.SHORTENED:
            return data[: chance.randrange(len(data))] if data else data
        if harm is SmallFileHarm.ZEROED:
            return bytes(len(data))
        if harm is SmallFileHarm.MISDIRECTED:
            return self._files.data(self._directory / chance.choice(names))
        there = bytearray(data)
        for _ in range(chance.choice([1, 1, 8]) if data else 0):
            there[chance.randrange(len(there))] ^= 1 << chance.randrange(8)
        return bytes(there)

    def fail(self) -> None:
        """Lets an operation on a file meet EIO, soon."""
        operation = self.chance.choice(["write", "sync", "open", "rename", "sync_directory"])
        self._files.fail(operation, errno.EIO, after=self.chance.choice([0, 0, 1, 3]))
        self.may_fail = True
