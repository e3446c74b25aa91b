"""Ports on which several processes listen: the kernel gives each connection, and each UDP peer, to one of them.

The kernel shares a port with every process of the same user, so two gateways by mistake would share theirs. Against
that the process that starts the others takes each port for itself first, and keeps those of TCP, on which it never
listens: it opens them to be shared when they are its own. Those of UDP nobody has while no worker runs.
"""

import asyncio
import socket
from collections.abc import Mapping

import msgspec

from gateway.config.config import ListenerConfig
from store.base.process_errors import listening_on


class SharedPorts:
    """The ports of listeners, kept for the processes that listen. `listeners` have the real ones instead of 0."""

    def __init__(self) -> None:
        self.listeners: dict[str, ListenerConfig] = {}
        self._kept: list[socket.socket] = []

    @classmethod
    async def keep(cls, listeners: Mapping[str, ListenerConfig]) -> "SharedPorts":
        """Takes the ports of all listeners that are enabled. Raises `ServerFailed`."""
        ports = cls()
        try:
            for name, one in listeners.items():
                ports.listeners[name] = await ports._place(one) if one.enabled else one
        except BaseException:
            ports.close()
            raise
        return ports

    def close(self) -> None:
        """Gives the ports back."""
        for sock in self._kept:
            sock.close()
        self._kept.clear()

    async def _place(self, one: ListenerConfig) -> ListenerConfig:
        port, tls_port = one.port, one.tls_port
        if one.plain:
            port = await self._take(one, port, "port")
        if tls_port is not None:
            tls_port = await self._take(one, tls_port, "tls_port")
        return msgspec.structs.replace(one, port=port, tls_port=tls_port)

    async def _take(self, one: ListenerConfig, port: int, key: str) -> int:
        """Takes a port on all addresses of a host, and returns its number."""
        kind = socket.SOCK_DGRAM if one.transport == "udp" else socket.SOCK_STREAM
        with listening_on(f"listeners.{one.name}", one.host, port, key=key):
            found = await asyncio.get_running_loop().getaddrinfo(one.host, port, type=kind, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in dict.fromkeys(found if kind == socket.SOCK_STREAM else found[:1]):
                port = self._bind(family, kind, (address[0], port, *address[2:]))
        return port

    def _bind(self, family: int, kind: int, address: tuple[object, ...]) -> int:
        sock = socket.socket(family, kind)
        try:
            stream = kind == socket.SOCK_STREAM
            if stream:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier run's connections may linger
            sock.bind(address)
            port: int = sock.getsockname()[1]
            if stream:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                self._kept.append(sock)
                return port
        except OSError:
            sock.close()
            raise
        sock.close()  # one that is bound is given datagrams
        return port
