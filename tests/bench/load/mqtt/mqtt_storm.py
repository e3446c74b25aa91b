"""A connect storm: many clients at the same time, as after a power cut or the restart of a broker."""

import os
import select
import socket
import time
from contextlib import suppress

from tests.bench.load.base import SILENCE_S, Count, Load, LoadError, Measured
from tests.bench.load.mqtt.mqtt_wire import connect_packet
from tests.bench.load.one_each import measured
from tests.bench.procfs import cpu_s

CONNACK = b"\x20\x02\x00\x00"  # accepted, of a clean session (3.2)
READY_MAX = 1_024  # sockets of one look


class MqttStorm(Load, frozen=True, kw_only=True, tag="mqtt-storm"):
    """Connections a second, from the first SYN to the last CONNACK, `at_once` of them under way at any time.

    All come from one process and stay open to the end.
    """

    conns: Count = 5_000
    at_once: Count = 500

    def run(self) -> Measured:
        """See `Load.run`."""
        opened: dict[int, socket.socket] = {}
        try:
            return self._storm(opened)
        finally:
            for one in opened.values():
                one.close()

    def _storm(self, opened: dict[int, socket.socket]) -> Measured:
        clock, waits = time.perf_counter, []
        began_s: dict[int, float] = {}  # by socket, of those whose CONNACK has not come
        with select.epoll() as poller:
            used_s = cpu_s(self.pid) if self.pid else 0.0
            started_s = clock()
            while len(waits) < self.conns:
                while len(began_s) < self.at_once and len(opened) < self.conns:
                    one = socket.socket()
                    one.setblocking(False)
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    number = one.fileno()
                    opened[number], began_s[number] = one, clock()
                    with suppress(BlockingIOError):
                        one.connect((self.host, self.port))
                    poller.register(number, select.EPOLLOUT)
                ready = poller.poll(SILENCE_S, READY_MAX)
                if not ready:
                    raise LoadError(f"nothing came for {SILENCE_S} s")
                for number, events in ready:
                    one = opened[number]
                    if events & select.EPOLLOUT and not events & (select.EPOLLERR | select.EPOLLHUP):
                        one.send(connect_packet(f"storm-{os.getpid()}-{number}"))
                        poller.modify(number, select.EPOLLIN)
                        continue
                    if one.recv(64) != CONNACK:
                        raise LoadError("a CONNECT was not accepted")
                    waits.append(clock() - began_s.pop(number))
                    poller.unregister(number)
            elapsed_s = clock() - started_s
        return measured(waits, elapsed_s, cpu_s(self.pid) - used_s if self.pid else 0.0)
