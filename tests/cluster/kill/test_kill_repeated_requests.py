"""kill -9 under clients that do not wait for answers: what is acknowledged is stored, once, as it was sent."""

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from tests.support.cluster.senders import stored
from tests.support.process.gateways import GatewayProcess
from tests.support.process.waiting import wait_until

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"
CLIENTS = 3
KILLS = 3
ANSWERS_A_LIFE = 400  # of all clients, before their gateway is killed


def headers(client: int, number: int) -> list[tuple[str, str]]:
    return [
        ("ce-specversion", "1.0"),
        ("ce-source", f"/client/{client}"),
        ("ce-type", "t"),
        ("ce-subject", f"kill/events/{client}"),
        ("ce-id", f"{client}-{number}"),
        ("content-type", "application/json"),
    ]


class Version1:
    """Pipelined requests, and their answers in the same order."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.under_way: list[int] = []
        self.buffered = b""

    def opening(self) -> bytes:
        return b""

    def post(self, number: int) -> bytes:
        self.under_way.append(number)
        body = b"%d" % number
        fields = [("host", HOST), *headers(self.client, number), ("content-length", str(len(body)))]
        lines = "".join([f"{name}: {value}\r\n" for name, value in fields])
        return f"POST /events HTTP/1.1\r\n{lines}\r\n".encode() + body

    def feed(self, data: bytes) -> Iterator[int]:
        self.buffered += data
        while (end := self.buffered.find(b"\r\n\r\n") + 4) > 3:
            head = self.buffered[:end].lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r")[0])
            if len(self.buffered) < end + length:
                return
            body, self.buffered = self.buffered[end : end + length], self.buffered[end + length :]
            number = self.under_way.pop(0)
            assert head.startswith(b"http/1.1 200 "), head
            assert json.loads(body)["id"] == f"{self.client}-{number}"
            yield number

    def answer(self) -> bytes:
        return b""


class Version2:
    """A stream for each request."""

    def __init__(self, client: int) -> None:
        self.client = client
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration())
        self.under_way: dict[int, int] = {}

    def opening(self) -> bytes:
        self.h2.initiate_connection()
        return self.answer()

    def post(self, number: int) -> bytes:
        stream = self.h2.get_next_available_stream_id()
        self.under_way[stream] = number
        pseudo = [(":method", "POST"), (":scheme", "http"), (":authority", HOST), (":path", "/events")]
        self.h2.send_headers(stream, [*pseudo, *headers(self.client, number)])
        self.h2.send_data(stream, b"%d" % number, end_stream=True)
        return self.answer()

    def feed(self, data: bytes) -> Iterator[int]:
        bodies: dict[int, bytes] = {}
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                assert dict(event.headers)[b":status"] == b"200"
            elif isinstance(event, h2.events.DataReceived):
                bodies[event.stream_id] = event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                number = self.under_way.pop(event.stream_id)
                assert json.loads(bodies[event.stream_id])["id"] == f"{self.client}-{number}"
                yield number

    def answer(self) -> bytes:
        return self.h2.data_to_send()


class Client(threading.Thread):
    """Posts numbered events on one connection until that is cut; `sent` and `acknowledged` go on with the next."""

    def __init__(self, gateway: GatewayProcess, wire: Any, window: int, sent: int, acknowledged: list[int]) -> None:
        super().__init__(daemon=True)
        self.gateway, self.wire, self.window = gateway, wire, window
        self.sent, self.acknowledged = sent, acknowledged
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            with socket.create_connection((self.gateway.host, self.gateway.port("http")), timeout=90) as peer:
                peer.sendall(self.wire.opening())
                with suppress(ConnectionError):
                    self._post(peer)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.failed = error

    def _post(self, peer: socket.socket) -> None:
        while True:
            more = b""
            while len(self.wire.under_way) < self.window:
                more += self.wire.post(self.sent)
                self.sent += 1
            peer.sendall(more)
            data = peer.recv(1 << 16)
            if not data:
                return
            self.acknowledged += self.wire.feed(data)
            peer.sendall(self.wire.answer())


@pytest.mark.parametrize(
    ("version", "window"),
    [
        pytest.param(Version1, 3, id="single messages"),
        pytest.param(Version1, 24, id="runs of requests"),
        pytest.param(Version2, 24, id="requests past h2"),
    ],
)
def test_each_acknowledged_event_is_stored_once_as_it_was_sent(version, window, tmp_path):
    gateway = GatewayProcess(tmp_path / "data")
    acknowledged: list[list[int]] = [[] for _ in range(CLIENTS)]
    sent = [0] * CLIENTS
    try:
        for life in range(1, KILLS + 1):
            gateway.start()
            clients = [Client(gateway, version(n), window, sent[n], acknowledged[n]) for n in range(CLIENTS)]
            for client in clients:
                client.start()
            wait_until(lambda: sum(map(len, acknowledged)) >= ANSWERS_A_LIFE * life or any(c.failed for c in clients))  # noqa: B023
            gateway.kill()
            for client in clients:
                client.join(90)
                assert not client.is_alive()
                if client.failed is not None:
                    raise client.failed
            sent = [client.sent for client in clients]
        gateway.start()
        found = stored(gateway)
    finally:
        gateway.close()
    for number in range(CLIENTS):
        here = found[f"kill/events/{number}"]
        assert set(acknowledged[number]) <= set(here) <= set(range(sent[number]))
        assert max(Counter(here).values()) == 1
        if version is Version1:  # requests of HTTP/1.1 have an order
            assert here == sorted(here)
