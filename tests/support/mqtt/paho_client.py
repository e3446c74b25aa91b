"""paho-mqtt as tests use it: what its threads hear is in queues."""

import contextlib
import itertools
import queue
import time
from typing import Any

from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

TIMEOUT_S = 60
VERSIONS = {"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5.0": paho.MQTTv5}

_names = itertools.count()


def fresh(prefix: str) -> str:
    """Returns a name that no other test has used."""
    return f"{prefix}-{time.monotonic_ns()}-{next(_names)}"


class PahoClient:
    """A paho client on a thread of its own; everything it hears is in queues."""

    def __init__(
        self,
        port: int,
        version: int = paho.MQTTv5,
        client_id: str | None = None,
        *,
        host: str = "127.0.0.1",
        user: tuple[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.host, self.port, self.version = host, port, version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[Any] = queue.Queue()
        self.left: queue.Queue[Any] = queue.Queue()
        self.connack: queue.Queue[Any] = queue.Queue()
        self.published: queue.Queue[Any] = queue.Queue()
        name = fresh("paho")[-23:] if client_id is None else client_id
        self.paho = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=version, **options)
        if user is not None:
            self.paho.username_pw_set(*user)
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_subscribe = lambda _c, _u, _mid, codes, _p: self.granted.put(codes)
        self.paho.on_connect = lambda _c, _u, flags, code, p: self.connack.put((flags, code, p))
        self.paho.on_disconnect = lambda _c, _u, _f, code, _p: self.left.put(code)
        self.paho.on_publish = lambda _c, _u, _mid, code, _p: self.published.put(code)

    def connect(self, **options: Any) -> "PahoClient":
        self.paho.connect(self.host, self.port, **options)
        self.paho.loop_start()
        self.flags, self.code, self.properties = self.connack.get(timeout=TIMEOUT_S)
        return self

    @property
    def present(self) -> bool:
        """Returns whether the gateway still had the session."""
        return bool(self.flags.session_present)

    def subscribe(self, *args: Any, **kwargs: Any) -> list[int]:
        self.paho.subscribe(*args, **kwargs)
        return [code.value for code in self.granted.get(timeout=TIMEOUT_S)]

    def publish(self, topic: str, body: bytes, qos: int = 1, **options: Any) -> None:
        self.paho.publish(topic, body, qos, **options).wait_for_publish(TIMEOUT_S)

    def get(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=TIMEOUT_S)

    def body(self) -> bytes:
        return bytes(self.get().payload)

    def bodies(self, count: int) -> list[bytes]:
        return [self.body() for _ in range(count)]

    def drop(self) -> None:
        """Cuts the connection without a DISCONNECT."""
        self.paho.loop_stop()
        self.paho.socket().close()

    def close(self) -> None:
        """Disconnects, and lets go of Paho's client, which closes its pair of sockets once nothing refers to it."""
        self.paho.disconnect()
        with contextlib.suppress(AttributeError):  # of a thread that ends at this moment
            self.paho.loop_stop()
        for name in ("message", "subscribe", "connect", "disconnect", "publish"):
            setattr(self.paho, f"on_{name}", None)


def connected(
    port: int,
    name: str,
    *,
    will: bytes | None = None,
    clean: bool = False,
    expiry_s: int = 600,
    **options: Any,
) -> PahoClient:
    """Returns a client of MQTT 5.0 that was let in, and that does not come back once its connection is lost.

    Its will is published to `wills`.
    """
    client = PahoClient(port, paho.MQTTv5, name, reconnect_on_failure=False, **options)
    if will is not None:
        client.paho.will_set("wills", will, qos=1)
    client.connect(clean_start=clean, properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry_s))
    assert not client.code.is_failure, client.code
    return client


def properties(kind: int, **fields: Any) -> Properties:
    found = Properties(kind)
    for name, value in fields.items():
        setattr(found, name, value)
    return found
