"""The connection to the gateway: MQTT 5.0 at QoS 1 with paho, which sends again what was not acknowledged."""

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

SESSION_EXPIRY_S: Final = 3_600
INFLIGHT_COUNT_MAX: Final = 100  # messages that the gateway has not acknowledged; others wait
RECONNECT_MIN_S, RECONNECT_MAX_S = 1, 30
KEEP_ALIVE_S: Final = 30
PUBLISHER: Final = "amqttclient"  # a user property: the client that published to amqtt
KEY: Final = "partitionkey"  # a user property: what has one key stays in order


class Refused(Exception):
    """The gateway does not store a message; `again`: it may later."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} (0x{code:02X})")
        self.again = code in {0x80, 0x83, 0x88, 0x97}  # unspecified, its own, unavailable, quota (MQTT 5.0, 2.4)


class Link:
    """A client of the gateway. It belongs to the event loop; paho's thread tells it what happened."""

    def __init__(self, *, client_id: str, loop: asyncio.AbstractEventLoop, logger: Any) -> None:
        self._loop = loop
        self._logger = logger
        self._waiting: dict[int, asyncio.Future[None]] = {}  # by packet identifier
        self.connected = False
        self._client = client = Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTv5)
        client.max_inflight_messages_set(INFLIGHT_COUNT_MAX)
        client.reconnect_delay_set(RECONNECT_MIN_S, RECONNECT_MAX_S)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish

    def secure(self, ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> None:
        """Uses TLS. Raises OSError, ValueError for files that are none."""
        context = ssl.create_default_context(cafile=ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
        self._client.tls_set_context(context)

    def log_in(self, username: str, password: str | None) -> None:
        """Uses a name and a password."""
        self._client.username_pw_set(username, password)

    def start(self, host: str, port: int) -> None:
        """Connects, and again whenever the connection ends."""
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = SESSION_EXPIRY_S
        self._client.connect_async(host, port, KEEP_ALIVE_S, clean_start=False, properties=properties)
        self._client.loop_start()

    def stop(self) -> None:
        """Disconnects and forgets messages that were not acknowledged. Waits for paho's thread."""
        client = self._client
        client.disconnect()
        client.loop_stop()
        client.on_connect = client.on_disconnect = client.on_publish = None  # it closes its sockets when it is let go

    def publish(self, address: str, data: bytes, *, retain: bool, client_id: str) -> "asyncio.Future[None]":
        """Sends a message, now or when there is a connection; the future ends when it is stored.

        It raises `Refused` when it will not be.
        """
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.UserProperty = [(KEY, client_id), (PUBLISHER, client_id)]
        stored: asyncio.Future[None] = self._loop.create_future()
        info = self._client.publish(address, data, qos=1, retain=retain, properties=properties)
        self._waiting[info.mid] = stored
        return stored

    # ---- paho's thread

    def _on_connect(self, _client: Client, _data: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        if code.is_failure:
            self._logger.warning("the Headgate gateway refuses the connection: %s", code)
        else:
            self.connected = True
            self._logger.info("connected to the Headgate gateway")

    def _on_disconnect(self, _client: Client, _data: Any, _flags: Any, code: ReasonCode, _properties: Any) -> None:
        self.connected = False
        self._logger.warning("the connection to the Headgate gateway has ended: %s", code)

    def _on_publish(self, _client: Client, _data: Any, mid: int, code: ReasonCode, _properties: Any) -> None:
        self._loop.call_soon_threadsafe(self._answered, mid, code)

    # ---- the event loop

    def _answered(self, mid: int, code: ReasonCode) -> None:
        stored = self._waiting.pop(mid, None)
        if stored is None or stored.done():
            return
        if code.is_failure:
            stored.set_exception(Refused(code.value, str(code)))
        else:
            stored.set_result(None)
