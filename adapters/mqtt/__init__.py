"""MQTT 3.1.1 and 5.0 (and 3.1's protocol name) over streams and WebSocket."""

from collections.abc import Sequence
from typing import Any

from adapters.mqtt.connection import Connection
from adapters.mqtt.options import Options
from adapters.mqtt.websocket import LISTENER, WebSocket
from gateway.port import Adapter, ConnectionInfo, DatagramAdapter, Listener, Random

__all__ = ["FACTORY", "Connection", "Options"]


class _Factory:
    """The entry point `mqtt` of the group `headgate.adapters` (`gateway.port.AdapterFactory`)."""

    listeners: Sequence[Listener] = (
        Listener(name="mqtt", port=1883, transport="tcp", tls_port=8883, alpn=("mqtt",), summary="MQTT 3.1.1 and 5.0"),
        Listener(
            name=LISTENER, port=8083, transport="tcp", tls_port=8084, alpn=("http/1.1",), summary="MQTT over WebSocket"
        ),
    )
    options = Options

    def connect(self, info: ConnectionInfo, options: Any, *, random: Random) -> Adapter:
        """The state machine of a new client's connection."""
        connection = Connection(info, options, random)
        return WebSocket(connection, info, options) if info.listener == LISTENER else connection

    def bind(self, options: Any, *, random: Random) -> DatagramAdapter:
        """MQTT has no datagrams. Raises `NotImplementedError`."""
        raise NotImplementedError("MQTT runs over streams only")


FACTORY = _Factory()
