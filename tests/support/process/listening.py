"""The ports and the sockets of a process of this machine, as /proc knows them."""

import contextlib
from pathlib import Path
from typing import NamedTuple

_LISTENS = "0A"  # the state of a TCP socket that listens (tcp_states.h); a UDP socket without a peer is "07"
_UNCONNECTED = "07"


class Port(NamedTuple):
    """A port at which a process hears everybody."""

    transport: str  # "tcp", "udp"
    number: int


def ports_of(pid: int) -> list[Port]:
    """Returns the ports at which a process listens, in order."""
    own = sockets_of(pid)
    found = set()
    for transport, state in (("tcp", _LISTENS), ("udp", _UNCONNECTED)):
        for name in (transport, f"{transport}6"):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == state and int(fields[9]) in own:
                    found.add(Port(transport, int(fields[1].rpartition(":")[2], 16)))
    return sorted(found)


def sockets_of(pid: int) -> set[int]:
    """Returns the inodes of the sockets that a process has open."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            target = str(link.readlink())
            if target.startswith("socket:["):
                found.add(int(target[len("socket:[") : -1]))
    return found


def resident_bytes_of(pid: int) -> int:
    """Returns the memory that a process has of its own: heap, not files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no memory")
