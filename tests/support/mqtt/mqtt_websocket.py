"""An MQTT client that speaks through a WebSocket, for tests: `mqtt_driver.Driver` behind the frames of `websockets`."""

from random import Random
from typing import Any

from msgspec.structs import replace
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from adapters.mqtt import FACTORY
from adapters.mqtt.codec.packets import Packet
from adapters.mqtt.messages.options import Options
from gateway.port.adapter import ConnectionInfo
from tests.support.mqtt.mqtt_driver import INFO, Driver, packets_in

WEB = replace(INFO, local=("127.0.0.1", 8083), listener="mqtt-ws")
KEY, ACCEPT = "dGhlIHNhbXBsZSBub25jZQ==", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, 1.3


def request(path: str = "/mqtt", method: str = "GET", version: str = "HTTP/1.1", **headers: str | None) -> bytes:
    """Returns a request for a WebSocket; leaves out a header that is given as None."""
    given = {
        "host": "localhost:8083",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec_websocket_key": KEY,
        "sec_websocket_version": "13",
        "sec_websocket_protocol": "mqtt",
    } | headers
    lines = [f"{name.replace('_', '-').title()}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {path} {version}", *lines, "", ""]).encode()


class WebDriver(Driver):
    """A driver whose bytes travel in frames. Control frames that it is sent are in `heard`."""

    def __init__(
        self, version: int = 5, options: Options | None = None, *, info: ConnectionInfo = WEB, **others: Any
    ) -> None:
        super().__init__(version, options, **others)
        self.adapter = FACTORY.connect(info, self.options, random=Random(1))
        self.client = ClientProtocol(parse_uri("ws://localhost:8083/mqtt"), subprotocols=["mqtt"], max_size=None)
        self.heard: list[Frame] = []

    def open(self) -> "WebDriver":
        """Makes the handshake."""
        self.client.send_request(self.client.connect())
        self.flush()
        self.out()
        assert self.client.handshake_exc is None, self.client.handshake_exc
        return self

    def feed(self, data: bytes) -> None:
        self.client.send_binary(data)
        self.flush()

    def flush(self) -> None:
        """Hands what the client has to write to the adapter."""
        self.raw(b"".join(self.client.data_to_send()))

    def raw(self, data: bytes) -> None:
        """Hands over bytes as they are on the wire."""
        self.act(self.adapter.receive(data, now_ms=self.now_ms))

    def out(self) -> list[Packet]:
        self.client.receive_data(self.adapter.take_output())
        payload = b""
        for event in self.client.events_received():
            if isinstance(event, Frame):
                if event.opcode is Opcode.BINARY:
                    payload += event.data
                else:
                    self.heard.append(event)
        return list(packets_in(payload, self.version))
