"""MQTT 3.1.1 and 5.0 (and 3.1's protocol name) over streams."""

from collections.abc import Sequence
from typing import Any

from adapters.mqtt.connection import Connection
from adapters.mqtt.options import Options
from gateway.port import Adapter, ConnectionInfo, DatagramAdapter, Listener, Random

__all__ = ["FACTORY", "Connection", "Options"]


class _Factory:
    """The entry point `mqtt` of the group `headgate.adapters` (`gateway.port.AdapterFactory`)."""

    listeners: Sequence[Listener] = (
        Listener(name="mqtt", port=1883, transport="tcp", tls_port=8883, alpn=("mqtt",), summary="MQTT 3.1.1 and 5.0"),
    )
    options = Options

    def connect(self, info: ConnectionInfo, options: Any, *, random: Random) -> Adapter:
        """The state machine of a new client's connection."""
        return Connection(info, options, random)

    def bind(self, options: Any, *, random: Random) -> DatagramAdapter:
        """MQTT has no datagrams. Raises `NotImplementedError`."""
        raise NotImplementedError("MQTT runs over streams only")


FACTORY = _Factory()
