"""Loads at half of what a server does: the rate, the times that are counted, and the servers that do not answer."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest

from tests.bench.load.base import Load, LoadError
from tests.bench.load.coap.coap_half import CoapHalf
from tests.bench.load.http.http_half import HttpHalf


class Server1:
    """Answers HTTP/1.1 with a status."""

    def __init__(self, status: int) -> None:
        self._answer = b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n" % status

    def feed(self, data: bytes) -> bytes:
        return self._answer * data.count(b"POST /events ")


class Server2:
    """Answers HTTP/2, the newest request first."""

    def __init__(self, status: int) -> None:
        self._status = str(status)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._h2.initiate_connection()

    def feed(self, data: bytes) -> bytes:
        ended = []
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.DataReceived):
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                ended.append(event.stream_id)
        for stream in reversed(ended):
            self._h2.send_headers(stream, [(":status", self._status)], end_stream=True)
        return self._h2.data_to_send()


@contextmanager
def serving_http(make: Callable[[], Any]) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(one: socket.socket) -> None:
            server = make()
            with one, suppress(OSError):
                while data := one.recv(1 << 16):
                    one.sendall(server.feed(data))

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        accepting.join(60)


@contextmanager
def serving_coap(code: int) -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        over = threading.Event()

        def serve() -> None:
            listening.settimeout(0.05)
            while not over.is_set():
                with suppress(TimeoutError):
                    data, peer = listening.recvfrom(2048)
                    listening.sendto(bytes([0x64, code]) + data[2:8], peer)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield listening.getsockname()[1]
        over.set()
        serving.join(60)


def shown(load: Load) -> None:
    found = load.run()
    also = found.also
    assert found.done > 0
    assert found.failed == 0
    assert found.done == int(also["rate"] * load.duration_s)  # type: ignore[attr-defined]
    assert found.value == also["p99_ms"] <= also["max_ms"]
    assert 0 < also["p50_ms"] <= also["p99_ms"]


@pytest.mark.parametrize(("version", "server"), [(1, Server1), (2, Server2)])
def test_http_is_asked_for_half_of_what_it_did(version: Any, server: Any) -> None:
    with serving_http(lambda: server(204)) as port:
        shown(HttpHalf(port=port, conns=5, probe_s=0.2, duration_s=0.2, version=version))


@pytest.mark.parametrize(("version", "server"), [(1, Server1), (2, Server2)])
def test_http_that_refuses_is_no_figure(version: Any, server: Any) -> None:
    with serving_http(lambda: server(503)) as port, pytest.raises(LoadError, match="503"):
        HttpHalf(port=port, conns=2, probe_s=0.1, duration_s=0.1, version=version).run()


def test_coap_is_asked_for_half_of_what_it_did() -> None:
    with serving_coap(0x44) as port:
        shown(CoapHalf(port=port, conns=5, probe_s=0.2, duration_s=0.2))


def test_coap_that_refuses_is_no_figure() -> None:
    with serving_coap(0xA3) as port, pytest.raises(LoadError, match=r"5\.03"):
        CoapHalf(port=port, conns=2, probe_s=0.1, duration_s=0.1).run()
