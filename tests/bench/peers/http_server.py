"""A bare HTTP server: every request is answered 204 as soon as it is whole, nothing is kept.

    python -m tests.bench.peers.http_server [--host 127.0.0.1] [--port 8080]

HTTP/1.1 is parsed by httptools and HTTP/2, told by its preface, by h2, on uvloop: what these libraries give before
anything is done with a request. The peer that the HTTP benchmarks are held against. Ends on SIGINT or SIGTERM.
"""

import argparse
import asyncio
import signal
from typing import Any

import httptools
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, StreamEnded

PREFACE_START = b"PRI * "
ANSWER_1 = b"HTTP/1.1 204 No Content\r\n\r\n"
ANSWER_2 = [(":status", "204")]


class Bare(asyncio.Protocol):
    """One connection of either version."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.answers = 0  # HTTP/1.1 answers due
        self.parser: Any = None
        self.h2: H2Connection | None = None

    def data_received(self, data: bytes) -> None:
        if self.parser is None and self.h2 is None:
            if data.startswith(PREFACE_START):
                self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding=None))
                self.h2.initiate_connection()
            else:
                self.parser = httptools.HttpRequestParser(self)
        if self.h2 is not None:
            self._receive_2(data)
        else:
            self.parser.feed_data(data)
            self.transport.write(ANSWER_1 * self.answers)
            self.answers = 0

    def on_message_complete(self) -> None:
        self.answers += 1

    def _receive_2(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                self.h2.send_headers(event.stream_id, ANSWER_2, end_stream=True)
        self.transport.write(self.h2.data_to_send())


async def serve(host: str, port: int) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(Bare, host, port)
    print(f"listens on {host}:{port}", flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.host, arguments.port))


if __name__ == "__main__":
    main()
