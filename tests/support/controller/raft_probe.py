"""Opens directories of Raft nodes that may be damaged, in a process of its own, which LMDB may end."""

import atexit
import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from controller.raft import Storage
from controller.raft.errors import StorageFailed
from controller.raft.lmdb_storage import ADVICE, LmdbStorage

ROOT = Path(__file__).parents[3]
MAP_SIZE_BYTES = 16 << 20
ENDLESS_S = 20  # after which an opening counts as one that has no end
REFUSED, DIED = "refused", "died"


def digest_of(storage: Storage) -> str:
    """Returns a digest of all that a storage holds."""
    first, end = storage.first_index(), storage.last_index() + 1
    entries = storage.entries(first, end, 1 << 40) if end > first else ()
    held = storage.hard_state(), storage.snapshot(), first, list(entries), storage.incarnation()
    return hashlib.sha256(msgspec.msgpack.encode(held)).hexdigest()


class Probe:
    """The process that opens directories, started again where one of them has ended it."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def close(self) -> None:
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            child.communicate()

    def ask(self, directory: Path, number: int) -> str:
        """Returns the digest of what a directory holds; `REFUSED`: it says it is damaged; `DIED`: nothing.

        Fails where a refusal does not say what to do.
        """
        if self._child is None:
            command = [sys.executable, "-m", "tests.support.controller.raft_probe"]
            self._child = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{number} {directory}\n")
        said = child.stdout.readline().strip()
        if not said:
            self._child = None
            child.communicate()
            assert child.returncode < 0, "the probe has ended by itself"
            return DIED
        assert not said.startswith("unclear"), said
        return said


def _look(directory: Path, number: int) -> str:
    try:
        storage = LmdbStorage.open(directory, number, map_size_bytes=MAP_SIZE_BYTES)
    except StorageFailed as error:
        return REFUSED if ADVICE in str(error) else f"unclear: {error}"
    try:
        return digest_of(storage)
    except StorageFailed as error:
        return REFUSED if ADVICE in str(error) else f"unclear: {error}"
    finally:
        storage.close()


def main() -> None:
    """Answers one line for each line."""
    for line in sys.stdin:
        number, _, directory = line.rstrip("\n").partition(" ")
        signal.alarm(ENDLESS_S)
        print(_look(Path(directory), int(number)), flush=True)
        signal.alarm(0)


if __name__ == "__main__":
    main()
