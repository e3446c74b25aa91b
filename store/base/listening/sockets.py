"""Sockets that listen, and the options of accepted ones."""

import errno
import socket
from contextlib import suppress

BACKLOG = 1_024
UNIX = "unix:"
# A client whose machine is gone is noticed after half a minute, also on a connection that is silent for long.
_KEEPALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000))


def listen(address: str) -> list[socket.socket]:
    """Listens on every address that a name has. Raises RuntimeError, as gRPC does, where that cannot be."""
    try:
        if address.startswith(UNIX):
            return [_unix_listener(address.removeprefix(UNIX))]
        host, _, port = address.rpartition(":")
        return _tcp_listeners(host.strip("[]"), int(port))
    except OSError as error:
        raise RuntimeError(f"{address}: {error}") from error


def _unix_listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _tcp_listeners(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            at = (where[0], port, *where[2:])
            everywhere = family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
            try:
                listener = socket.create_server(at, family=family, backlog=BACKLOG, dualstack_ipv6=everywhere)
            except OSError as error:
                if listeners and error.errno in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EADDRINUSE}:
                    continue  # it listens on another one of the name's
                raise
            listener.setblocking(False)
            listeners.append(listener)
            port = port or listener.getsockname()[1]
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def keep_alive(accepted: socket.socket) -> None:
    """Turns on the kernel's keep-alive, which notices a client whose machine is gone."""
    if accepted.family == socket.AF_UNIX:
        return
    with suppress(OSError):  # it has ended already, which will be noticed
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                accepted.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
