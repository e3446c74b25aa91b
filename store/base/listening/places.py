"""The connections of a server, counted by their origin and by whether they have authenticated.

Every peer that reaches the port can connect. So a connection that has not yet opened, or is passed on to gRPC, holds a
place of its own kind and cannot take those of pipes. Nor can one address take another's: the one with the most places
loses its oldest.
"""

import resource
import socket
from typing import Any

from store.base.listening.peer_budget import Holder

_MAPPED = bytes(10) + b"\xff\xff"
_IPV6_NETWORK_BYTES = 8  # one host chooses the rest itself


class ConnectionSlots:
    """Connections of one kind; whichever has to make way is cancelled."""

    def __init__(self) -> None:
        """Begins without connections."""
        self._held: dict[bytes, dict[Holder, None]] = {}  # by origin, oldest first; none is empty
        self._origins: dict[Holder, bytes] = {}

    def __len__(self) -> int:
        """Returns how many places are taken."""
        return len(self._origins)

    def take(self, holder: Holder, origin: bytes, most: int) -> None:
        """Takes a place. Beyond `most`, the oldest one of the origin that has most is given up."""
        self._origins[holder] = origin
        self._held.setdefault(origin, {})[holder] = None
        self.keep(most)

    def keep(self, most: int) -> None:
        """Gives up those that are more than `most`: the oldest one of the origin that has most, again and again."""
        while len(self._origins) > most:
            largest = max(self._held.values(), key=len)
            oldest = next(iter(largest))
            self.leave(oldest)
            oldest.cancel()

    def leave(self, holder: Holder) -> None:
        """Gives a place back, if it was taken."""
        origin = self._origins.pop(holder, None)
        if origin is not None:
            held = self._held[origin]
            del held[holder]
            if not held:
                del self._held[origin]


def origin_of(family: int, address: Any) -> bytes:
    """Returns whose a connection is, by its address: a host's of IPv4, a network's of 64 bits of IPv6."""
    if family == socket.AF_INET:
        return socket.inet_pton(family, address[0])
    if family != socket.AF_INET6:
        return b""
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    return packed[len(_MAPPED) :] if packed.startswith(_MAPPED) else packed[:_IPV6_NETWORK_BYTES]


def of_files(most: int, part: int) -> int:
    """Returns `most`, but at most one for every `part` files that this process may open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if files == resource.RLIM_INFINITY else min(most, files // part)


def below_files(most: int, kept: int) -> int:
    """Returns `most`, but at most the files that this process may open beside `kept` others, or half of all files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return most if files == resource.RLIM_INFINITY else min(most, max(files - kept, files // 2))
