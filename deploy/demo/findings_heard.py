"""A subscriber that hears the telemetry job's findings over MQTT, as a dashboard or a pager would (paho-mqtt)."""

import threading
from typing import Any, NamedTuple

import msgspec
import paho.mqtt.client as mqtt

from deploy.demo.plan import Target

FILTER = "analytics/#"
CONNECT_S = 15.0


class Finding(NamedTuple):
    """The figures that tell a finding from every other."""

    device: str
    metric: str
    kind: str
    time: str  # RFC 3339, in ms


class FindingsHeard:
    """All findings since it was started. Its counters may be read from any thread."""

    def __init__(self, run: str, target: Target) -> None:
        self._lock = threading.Lock()
        self._heard: dict[Finding, int] = {}
        self._newest = ""
        self._subscribed = threading.Event()
        self._target = target
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"{run}-findings", protocol=mqtt.MQTTv5)
        self._client.on_connect = self._connected
        self._client.on_subscribe = lambda *_: self._subscribed.set()
        self._client.on_message = self._take

    def start(self) -> bool:
        """Connects and subscribes; returns whether it could. Blocking."""
        self._client.connect(self._target.host, self._target.mqtt, keepalive=30)
        self._client.loop_start()
        return self._subscribed.wait(CONNECT_S)

    def close(self) -> None:
        """Disconnects."""
        self._client.disconnect()
        self._client.loop_stop()

    @property
    def found(self) -> dict[Finding, int]:
        """Returns each finding that was heard, and how often."""
        with self._lock:
            return dict(self._heard)

    @property
    def newest(self) -> str:
        """The last one's device and sentence."""
        with self._lock:
            return self._newest

    def _connected(self, client: mqtt.Client, *_: Any) -> None:
        client.subscribe(FILTER, qos=1)

    def _take(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        said = msgspec.json.decode(message.payload, type=dict[str, Any])
        one = Finding(said.get("device", ""), said.get("metric", ""), said["kind"], said["time"])
        with self._lock:
            self._heard[one] = self._heard.get(one, 0) + 1
            name = " ".join(word for word in (one.device, one.metric) if word)
            self._newest = f"{name}: {said['sentence']}"
