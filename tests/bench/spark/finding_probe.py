"""Devices whose readings are strange now and then, over MQTT, and a subscriber that hears of it over MQTT.

Each device sends a reading of noise every `EVERY_S`; the first `WARM_COUNT` of them teach the job its series. From then
on every nth is a spike with a value that no other one has, by which the finding that comes back is told.
"""

import json
import random
import threading
import time
from typing import Any

import paho.mqtt.client as mqtt

EVERY_S = 0.25
WARM_COUNT = 40  # more than the job wants of a series before it judges it
SPIKE_EVERY = 20  # readings of a device, from one spike to the next
SPIKE = 1_000.0  # the first one's value
FILTER = "analytics/anomaly/+"
CONNECT_S = 30.0


def client() -> mqtt.Client:
    """Returns a client whose id the server makes, so that the address says the device."""
    return mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id="", protocol=mqtt.MQTTv5)


class FindingProbe(threading.Thread):
    """Publishes the readings of some devices, and hears the findings."""

    def __init__(self, port: int, topic: str, devices: int, seconds: float) -> None:
        super().__init__(daemon=True)
        self._topic, self._devices, self._seconds = topic, devices, seconds
        self._chance = random.Random(1)
        self.published = 0
        self.sent: dict[float, float] = {}  # a spike's value, and when it was published
        self.heard: dict[float, float] = {}  # the same, and when the first finding of it came
        self._subscribed = threading.Event()
        self._publisher, self._subscriber = client(), client()
        self._subscriber.on_connect = lambda one, *_: one.subscribe(FILTER, qos=1)
        self._subscriber.on_subscribe = lambda *_: self._subscribed.set()
        self._subscriber.on_message = self._hear
        for one in (self._publisher, self._subscriber):
            one.connect("127.0.0.1", port)
            one.loop_start()
        assert self._subscribed.wait(CONNECT_S), f"the subscription to {FILTER} is not acknowledged"

    def run(self) -> None:
        """Publishes for so many seconds, the devices evenly spread over the time of a reading."""
        began_s, pause_s = time.monotonic(), EVERY_S / self._devices
        while (now_s := time.monotonic()) < began_s + self._seconds:
            for n in range(self.published, int((now_s - began_s) / pause_s)):
                self._publish(n % self._devices, n // self._devices)
            time.sleep(pause_s)

    def _publish(self, device: int, reading: int) -> None:
        value = round(self._chance.gauss(20.0, 1.0), 3)
        strange = reading > WARM_COUNT and (reading + device) % SPIKE_EVERY == 0  # not all devices at once
        if strange:
            value = SPIKE + len(self.sent)
            self.sent[value] = time.time()
        self.published += 1
        self._publisher.publish(f"{self._topic}/site1/probe{device}/level", json.dumps({"level": value}), qos=1)

    def _hear(self, _client: Any, _data: Any, message: mqtt.MQTTMessage) -> None:
        came_s, found = time.time(), json.loads(message.payload)
        if found["kind"] == "spike":
            self.heard.setdefault(found["value"], came_s)

    def wait(self, seconds: float) -> None:
        """Waits until each spike was heard of, for a bounded time."""
        until = time.monotonic() + seconds
        while self.sent.keys() - self.heard.keys() and time.monotonic() < until:
            time.sleep(0.1)

    def close(self) -> None:
        """Ends the connections."""
        for one in (self._publisher, self._subscriber):
            one.disconnect()
            one.loop_stop()

    def times_s(self, from_s: float) -> list[float]:
        """Returns the time from each spike, of those published from a time on, to its finding."""
        sent = {value: at_s for value, at_s in self.sent.items() if at_s >= from_s}
        return [came_s - sent[value] for value, came_s in self.heard.items() if value in sent]
