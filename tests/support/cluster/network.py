"""A network for processes, in which anything can go wrong: a namespace for each, and a switch between them.

The switch is a process of its own (`python -m tests.support.cluster.network`). Every namespace has one interface, a TUN
device, whose other end the switch holds: all packets pass through it, and it loses, delays and drops them as it is
told. Nothing of the system's own packet filters or queueing disciplines is needed, and with the switch everything is
gone.
"""

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
MTU = 9000
QUEUE_MAX = 20_000  # packets that wait for their time; more are lost
READS = 64  # packets of one interface in a row
START_S = 20.0
HOST = "host"  # the maker of the network, in its own namespace

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class NetworkFailed(Exception):
    """The network cannot be made, or its switch has ended."""


def missing() -> str | None:
    """Returns why there can be no such network here."""
    if os.geteuid():
        return "network namespaces are for root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing"
    try:
        Network(["probe"]).close()
    except NetworkFailed as error:
        return f"no network namespaces here: {error}"
    return None


class Network:
    """Namespaces by name, and this process's own (`HOST`); each has an address that all others reach."""

    def __init__(self, names: Iterable[str], *, mtu: int = MTU) -> None:
        self._switch = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )
        self._dropped: set[tuple[str, str]] = set()
        self._trouble: dict[str, float] = {}
        number = os.getpid()
        made = self._ask({"names": list(names), "prefix": f"10.{64 + number % 64}.{number // 64 % 256}", "mtu": mtu})
        self.addresses: Mapping[str, str] = made["addresses"]
        self._namespaces: Mapping[str, int] = made["namespaces"]

    def under(self, name: str) -> Sequence[str]:
        """Returns the command that runs another command in a namespace, and becomes it."""
        return ("nsenter", f"--net=/proc/{self._switch.pid}/fd/{self._namespaces[name]}")

    def cut(self, some: Collection[str], others: Collection[str] | None = None, *, back: bool = True) -> None:
        """Drops all packets from some to others (None: to all others), and with `back` those from others to them."""
        others = self.addresses.keys() - set(some) if others is None else others
        self._dropped |= {(one, other) for one in some for other in others}
        if back:
            self._dropped |= {(other, one) for one in some for other in others}
        self._tell()

    def trouble(
        self, *, loss: float = 0.0, delay_ms: float = 0.0, jitter_ms: float = 0.0, clients: bool = True
    ) -> None:
        """Loses a share of all packets and delays the others, each by up to `jitter_ms` more; with `clients` those from
        and to `HOST` too.
        """
        self._trouble = {"loss": loss, "delay_ms": delay_ms, "jitter_ms": jitter_ms, "clients": clients}
        self._tell()

    def heal(self) -> None:
        """Ends all cuts, losses and delays."""
        self._dropped.clear()
        self._trouble = {}
        self._tell()

    def close(self) -> None:
        """Ends the switch, and with it the network: the namespaces stay, and no packet reaches them any more."""
        assert self._switch.stdin is not None
        self._switch.stdin.close()
        try:
            self._switch.wait(5)
        except subprocess.TimeoutExpired:
            self._switch.kill()
            self._switch.wait()
        for stream in (self._switch.stdout, self._switch.stderr):
            assert stream is not None
            stream.close()

    def _tell(self) -> None:
        self._ask({"dropped": sorted(self._dropped), **self._trouble})

    def _ask(self, order: Mapping[str, Any]) -> Any:
        """Returns the switch's answer. Raises `NetworkFailed`."""
        stdin, stdout, stderr = self._switch.stdin, self._switch.stdout, self._switch.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # why is on its standard error
        answer = stdout.readline() if select.select([stdout], [], [], START_S)[0] else b""
        if not answer:
            self._switch.kill()
            words = stderr.read().decode("utf-8", "replace").strip().splitlines()
            self.close()
            raise NetworkFailed(words[-1] if words else "the switch does not answer")
        return json.loads(answer)


# ---- the switch


class Switch:
    """Reads packets (IPv4, without link layer) from each interface and writes them to the one they are for."""

    def __init__(self) -> None:
        self.sources: dict[int, bytes] = {}  # the address of whoever sends, by the interface's descriptor
        self.targets: dict[bytes, int] = {}
        self.namespaces: dict[str, int] = {}
        self.addresses: dict[str, str] = {}
        self._packed: dict[str, bytes] = {}
        self._dropped: frozenset[tuple[bytes, bytes]] = frozenset()
        self._loss = self._delay_s = self._jitter_s = 0.0
        self._spared: bytes | None = None  # the address whose packets meet no trouble
        self._waiting: list[tuple[float, int, int, bytes]] = []  # due, a number that keeps order, to whom, the packet
        self._count = 0
        self._chance = random.Random(1)

    def build(self, names: Sequence[str], prefix: str, mtu: int) -> None:
        """Makes the namespaces and all interfaces. Raises OSError, CalledProcessError."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        for i, name in enumerate([HOST, *names]):
            if name != HOST:
                _checked(libc.unshare(_CLONE_NEWNET))
                self.namespaces[name] = os.open("/proc/self/ns/net", os.O_RDONLY)
                _ip("link", "set", "lo", "up")
            address = f"{prefix}.{i + 1}"
            interface = _interface(address, mtu)
            packed = bytes(int(part) for part in address.split("."))
            self.addresses[name], self._packed[name] = address, packed
            self.sources[interface], self.targets[packed] = packed, interface
        _checked(libc.setns(home, _CLONE_NEWNET))

    def obey(self, order: Mapping[str, Any]) -> None:
        """Takes an order: which packets are dropped from now on, and how many are lost or delayed."""
        self._dropped = frozenset((self._packed[one], self._packed[other]) for one, other in order["dropped"])
        self._loss = order.get("loss", 0.0)
        self._delay_s, self._jitter_s = order.get("delay_ms", 0.0) / 1000, order.get("jitter_ms", 0.0) / 1000
        self._spared = None if order.get("clients", True) else self._packed[HOST]

    def run(self) -> None:
        """Carries packets until standard input ends."""
        orders = sys.stdin.fileno()
        watched = [orders, *self.sources]
        while True:
            wait_s = max(self._waiting[0][0] - time.monotonic(), 0) if self._waiting else None
            for found in select.select(watched, [], [], wait_s)[0]:
                if found != orders:
                    self._forward(found)
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                self.obey(json.loads(line))
                _say({})
            self._deliver()

    def _forward(self, interface: int) -> None:
        source, targets, dropped, chance = self.sources[interface], self.targets, self._dropped, self._chance
        at_once, spared = not (self._loss or self._delay_s or self._jitter_s), self._spared
        for _ in range(READS):
            try:
                packet = os.read(interface, 65536)
            except BlockingIOError:
                return
            target = packet[16:20]  # RFC 791, 3.1
            if packet[0] >> 4 != 4 or target not in targets or (source, target) in dropped:
                continue
            if (at_once and not self._waiting) or spared in {source, target}:
                _send(targets[target], packet)
            elif chance.random() >= self._loss and len(self._waiting) < QUEUE_MAX:
                self._count += 1
                due = time.monotonic() + self._delay_s + self._jitter_s * chance.random()
                heapq.heappush(self._waiting, (due, self._count, targets[target], packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._waiting and self._waiting[0][0] <= now:
            _, _, interface, packet = heapq.heappop(self._waiting)
            _send(interface, packet)


def _send(interface: int, packet: bytes) -> None:
    try:
        os.write(interface, packet)
    except OSError:
        return  # its queue is full, or it is down: the packet is lost, as packets may be


def _interface(address: str, mtu: int) -> int:
    """Makes an interface in this process's namespace, and returns the descriptor of its other end."""
    found = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    request = fcntl.ioctl(found, _TUNSETIFF, struct.pack("16sH22x", b"headgate%d", _IFF_TUN | _IFF_NO_PI))
    device = request[:16].rstrip(b"\0").decode()
    _ip("addr", "add", f"{address}/24", "dev", device)
    _ip("link", "set", device, "mtu", str(mtu), "txqueuelen", "5000", "up")
    return found


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(done.returncode, f"ip {' '.join(words)}: {done.stderr.strip()}")


def _checked(status: int) -> None:
    if status:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _say(answer: Any) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Builds what the first line of the input says, then obeys the other lines; returns the exit status."""
    switch = Switch()
    try:
        switch.build(**json.loads(sys.stdin.readline()))
    except OSError as error:
        print(error.strerror, file=sys.stderr)
        return 1
    _say({"addresses": switch.addresses, "namespaces": switch.namespaces})
    switch.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
