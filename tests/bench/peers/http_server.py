"""A bare HTTP server: reads CloudEvents with the CloudEvents SDK, answers 204, keeps nothing.

    python -m tests.bench.peers.http_server [--host 127.0.0.1] [--port 8080] [--unread]

HTTP/1.1 is parsed by httptools and HTTP/2, told by its preface, by h2, on uvloop: about the least that a Python
program which takes events can do. The peer that the HTTP benchmarks are held against. With `--unread` it looks at
no event: a bare application on httptools and h2. Ends on SIGINT or SIGTERM.
"""

import argparse
import asyncio
import json
import signal
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import httptools
import uvloop
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.v1.event import CloudEvent
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

PREFACE_START = b"PRI * "
ANSWER_1 = b"HTTP/1.1 204 No Content\r\n\r\n"
ANSWER_2 = [(":status", "204")]
BATCH = "application/cloudevents-batch+json"

Read: TypeAlias = Callable[[Mapping[str, str], bytes], None]  # of the headers and the body of a request


def take(headers: Mapping[str, str], body: bytes) -> None:
    """Reads the events of a request; one that is none raises, and the connection ends."""
    if headers.get("content-type") == BATCH:
        for event in json.loads(body):
            data = event.pop("data", None)
            CloudEvent(event, data)
    elif "ce-id" in headers:
        from_http_event(HTTPMessage(dict(headers), body))


def pass_over(_headers: Mapping[str, str], _body: bytes) -> None:
    """Takes the body as it is."""


class Bare(asyncio.Protocol):
    """A connection whose version is not known yet."""

    def __init__(self, read: Read) -> None:
        self.read = read

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        protocol = (Version2 if data.startswith(PREFACE_START) else Version1)(self.transport, self.read)
        self.transport.set_protocol(protocol)
        protocol.data_received(data)


class Version1(asyncio.Protocol):
    """HTTP/1.1, the answers of one read in one write."""

    def __init__(self, transport: Any, read: Read) -> None:
        self.transport = transport
        self.read = read
        self.parser = httptools.HttpRequestParser(self)
        self.headers: dict[str, str] = {}
        self.body = b""
        self.answers = 0

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        self.transport.write(ANSWER_1 * self.answers)
        self.answers = 0

    def on_message_begin(self) -> None:
        self.headers, self.body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.read(self.headers, self.body)
        self.answers += 1


class Version2(asyncio.Protocol):
    """HTTP/2."""

    def __init__(self, transport: Any, read: Read) -> None:
        self.transport = transport
        self.read = read
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.requests: dict[int, tuple[dict[str, str], bytearray]] = {}

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, RequestReceived):
                self.requests[event.stream_id] = (dict(event.headers), bytearray())
            elif isinstance(event, DataReceived):
                self.requests[event.stream_id][1].extend(event.data)
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                headers, body = self.requests.pop(event.stream_id)
                self.read(headers, bytes(body))
                self.h2.send_headers(event.stream_id, ANSWER_2, end_stream=True)
        self.transport.write(self.h2.data_to_send())


async def serve(host: str, port: int, read: Read) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    server = await loop.create_server(lambda: Bare(read), host, port)
    print(f"listens on {host}:{port}", flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--unread", action="store_true", help="leave events unread")
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.host, arguments.port, pass_over if arguments.unread else take))


if __name__ == "__main__":
    main()
