"""UDP sockets bound to all addresses of the machine.

A response has to come from the address that its request was sent to (RFC 7252, 5.3.2), and the kernel would choose one
by the route to the peer: the first one of the interface, or another interface's. So each datagram is read with its
local address, and each is sent with one. It is part of the peer: at two addresses of ours a peer is two endpoints.

    in_pktinfo      interface (4), local address (4), destination in the header (4)
    in6_pktinfo     destination in the header (16), interface (4)
"""

import socket
import sys
from ipaddress import ip_address
from struct import Struct
from typing import Final

from gateway.port.adapter import Peer

_IP_PKTINFO: Final = 8  # Linux; Python has no name for it yet
_IPV6_RECVPKTINFO, _IPV6_PKTINFO = 49, 50
_INFO4, _INFO6 = Struct("=I4s4s"), Struct("=16sI")
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_INFO6.size) + socket.CMSG_SPACE(_INFO4.size)
_LINK_LOCAL: Final = b"\xfe\x80"


def is_wildcard(sock: socket.socket) -> bool:
    """Returns whether a bound socket receives at all addresses, on a system where they can be told apart."""
    return sys.platform == "linux" and ip_address(sock.getsockname()[0]).is_unspecified


class WildcardSocket:
    """Reads and sends as the methods of the same names of a socket do, with peers that name our address, too."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        if sock.family == socket.AF_INET6:
            self._level, self._kind = socket.IPPROTO_IPV6, _IPV6_PKTINFO
            sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        else:
            self._level, self._kind = socket.IPPROTO_IP, _IP_PKTINFO
            sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)

    def recvfrom(self, size_bytes: int) -> tuple[bytes, Peer]:
        """Returns a datagram and its peer, whose last element is what `sendto` has to say of our address."""
        data, ancillary, _, address = self._socket.recvmsg(size_bytes, _ANCILLARY_BYTES)
        for level, kind, info in ancillary:
            if level == self._level and kind == self._kind:
                return data, (*address, self._local(info))
        return data, (*address, b"")

    def _local(self, info: bytes) -> bytes:
        """Returns our address for answers: the interface is left to the route, but for addresses of a link."""
        if self._kind == _IP_PKTINFO:
            return _INFO4.pack(0, info[4:8], bytes(4))
        return info if info.startswith(_LINK_LOCAL) else _INFO6.pack(info[:16], 0)

    def sendto(self, data: bytes, peer: Peer) -> int:
        """Sends a datagram from the address of ours that the peer names."""
        local = peer[-1]
        ancillary = ((self._level, self._kind, local),) if local else ()
        return self._socket.sendmsg((data,), ancillary, 0, peer[:-1])
