"""Ports for processes of tests: none is among those that the system gives to connections, which are from 32768 on."""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Callable, Collection, Set
from pathlib import Path

PORTS = {
    "mqtt": 1883,
    "mqtt-ws": 8083,
    "coap": 5683,
    "coap-tcp": 5683,
    "amqp": 5672,
    "http": 8080,
    "rpc": 8081,
    "admin": 8088,
}
TLS_PORTS = {"coaps": 5684, "mqtts": 8883, "mqtt-wss": 8084, "amqps": 5671, "https": 8443}
OFFSETS = range(10_000, 22_500)  # added to ports below 10,000
TRIES = 100


class _Claims:
    """The ports that this process has taken for its tests, so that tests which run beside them take none of these.

    A port is claimed by a lock on the byte of its number in a file that all test processes of a user share. The claim
    lasts until the tests of a file have ended: a gateway that is killed finds its port free when it is started again.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        self._claimed: set[int] = set()

    @property
    def own(self) -> Set[int]:
        """The ports that this process has claimed: what they are for may not have been started yet."""
        return self._claimed

    def take(self, ports: Collection[int]) -> bool:
        """Claims all of some ports, or none."""
        taken = []
        for port in set(ports) - self._claimed:
            if not self._lock(port):
                for one in taken:
                    fcntl.lockf(self._opened(), fcntl.LOCK_UN, 1, one)
                return False
            taken.append(port)
        self._claimed.update(taken)
        return True

    def release(self) -> None:
        """Gives up every claim of this process."""
        fcntl.lockf(self._opened(), fcntl.LOCK_UN)
        self._claimed.clear()

    def _lock(self, port: int) -> bool:
        try:
            fcntl.lockf(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        return True

    def _opened(self) -> int:
        if self._file is None:
            path = Path(tempfile.gettempdir()) / f"headgate-test-ports-{os.getuid()}"
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._file


_CLAIMS = _Claims()


def free_offset(ports: Callable[[int], Collection[int]], *, but: Collection[int] = ()) -> int:
    """Returns an offset at which every port is free, for TCP and for UDP, and none of `but`, and claims them.

    `ports` says which they are.
    """
    for others in (_CLAIMS.own | set(but), set(but)):  # ports of what this process started before, only if need be
        for offset in random.sample(OFFSETS, TRIES):
            asked = ports(offset)
            if not set(asked) & others and all(map(_is_free, asked)) and _CLAIMS.take(asked):
                return offset
    raise AssertionError("no free ports")


def release_ports() -> None:
    """Gives up every claim: nothing that a test has started is started again. Ports in use stay so."""
    _CLAIMS.release()


def free_port() -> int:
    """Returns one port that is free, for TCP and for UDP, and claims it."""
    return free_offset(lambda port: [port])


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True
