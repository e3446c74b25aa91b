"""Many who hear of the same address: memory of each, and how fast a message reaches all. Prints JSON.

python -m tests.bench.gateway.subscribers [--observers 10000] [--streams 10000] [--messages 10]

A gateway in a process of its own is observed over CoAP (RFC 7641), each observer from a socket of its own, and after
that read by server-sent events, each stream over a connection of its own. Messages are published one after the other,
each when all have heard of the one before it; what counts is the time from the request to the last that hears of it.
The clients are one process that shares the machine.
"""

import argparse
import contextlib
import json
import resource
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

from adapters.coap.codec.registry import ACK, CON, EMPTY, GET, OBSERVE
from adapters.coap.codec.wire import Packet, decode, encode
from tests.bench.gateway.push_sinks import memory_kib, processor_s
from tests.support.coap.coap_driver import request
from tests.support.process.gateways import GatewayProcess

ADDRESS = "bench/site1/all"
WAVE = 200  # subscribers that begin together
PATIENCE_S = 120.0
READ_BYTES = 65_536

Hear = Callable[[socket.socket], int]  # reads a socket; returns how many messages it has brought


def waves(sockets: list[socket.socket]) -> Iterator[list[socket.socket]]:
    for at in range(0, len(sockets), WAVE):
        yield sockets[at : at + WAVE]


def heard(poller: select.epoll, by_number: dict[int, socket.socket], hear: Hear, wanted: int) -> int:
    """Reads until so many messages have come. Returns how many have, fewer when nothing comes any more."""
    came, deadline_s = 0, time.monotonic() + PATIENCE_S
    while came < wanted and time.monotonic() < deadline_s:
        for number, _ in poller.poll(1.0):
            came += hear(by_number[number])
    return came


def hear_notification(one: socket.socket) -> int:
    """Reads notifications; a Confirmable one is acknowledged."""
    came = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            packet = decode(one.recv(READ_BYTES))
            if packet.code == EMPTY:
                continue
            came += 1
            if packet.type == CON:
                one.send(encode(Packet(type=ACK, code=EMPTY, mid=packet.mid)))
    return came


def hear_event(one: socket.socket) -> int:
    """Reads events of a stream."""
    data = one.recv(READ_BYTES)
    if not data:
        raise ConnectionResetError("a stream has ended")
    return data.count(b"data:")


def observing(gateway: GatewayProcess, count: int) -> list[socket.socket]:
    """Returns sockets that observe the address."""
    sockets: list[socket.socket] = []
    for number in range(count):
        one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        one.bind((f"127.0.{1 + number // 20_000}.1", 0))
        one.connect(("127.0.0.1", gateway.port("coap")))
        sockets.append(one)
    for wave in waves(sockets):
        for one in wave:
            one.send(request(f"t/{ADDRESS}", GET, token=b"tk", options=((OBSERVE, b""),)))
        for one in wave:
            one.settimeout(PATIENCE_S)
            packet = decode(one.recv(READ_BYTES))
            assert OBSERVE in dict(packet.options), "the gateway takes no more observers"
            one.setblocking(False)
    return sockets


def streaming(gateway: GatewayProcess, count: int) -> list[socket.socket]:
    """Returns connections that read events of the address."""
    sockets: list[socket.socket] = []
    head = f"GET /subscribe?filter={ADDRESS} HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\n\r\n".encode()
    for at in range(0, count, WAVE):
        wave = [socket.create_connection(("127.0.0.1", gateway.port("http"))) for _ in range(min(WAVE, count - at))]
        for one in wave:
            one.sendall(head)
        for one in wave:
            one.settimeout(PATIENCE_S)
            assert b" 200 " in one.recv(READ_BYTES)
            one.setblocking(False)
        sockets += wave
    return sockets


def measure(
    gateway: GatewayProcess, sockets: list[socket.socket], hear: Hear, before: int, messages: int
) -> dict[str, float]:
    """Publishes, and waits until all have heard of it, again and again."""
    poller = select.epoll()
    for one in sockets:
        poller.register(one.fileno(), select.EPOLLIN)
    by_number = {one.fileno(): one for one in sockets}
    idle = memory_kib(gateway)
    took_s: list[float] = []
    lost = 0
    with httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False) as client:
        used_s = processor_s(gateway)
        for number in range(messages):
            began_s = time.perf_counter()
            client.post(f"/topics/{ADDRESS}", content=b"%d" % number).raise_for_status()
            lost += len(sockets) - heard(poller, by_number, hear, len(sockets))
            took_s.append(time.perf_counter() - began_s)
        used_s = processor_s(gateway) - used_s
    count = len(sockets)
    return {
        "subscribers": count,
        "idle_kib_each": round((idle - before) / count, 2),
        "busy_kib_each": round((memory_kib(gateway) - before) / count, 2),
        "messages": messages,
        "not_heard": lost,
        "deliveries_per_s": round(count * messages / sum(took_s)),
        "last_hears_after_s": round(sorted(took_s)[len(took_s) // 2], 3),
        "processor_us_each": round(used_s * 1e6 / (count * messages), 1),
    }


def run(
    begin: Callable[[GatewayProcess, int], list[socket.socket]], hear: Hear, count: int, messages: int
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        gateway = GatewayProcess(Path(directory) / "data").start()
        try:
            httpx.post(f"{gateway.url}/topics/{ADDRESS}", content=b"first", trust_env=False).raise_for_status()
            before = memory_kib(gateway)
            sockets = begin(gateway, count)
            try:
                return measure(gateway, sockets, hear, before, messages)
            finally:
                for one in sockets:
                    one.close()
        finally:
            gateway.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observers", type=int, default=10_000)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=10)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    found = {
        name: run(begin, hear, count, arguments.messages)
        for name, begin, hear, count in (
            ("observers", observing, hear_notification, arguments.observers),
            ("event_streams", streaming, hear_event, arguments.streams),
        )
        if count
    }
    json.dump(found, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
