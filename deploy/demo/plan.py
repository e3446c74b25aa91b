"""The plan of the fleet: who publishes, where to, how fast, and how every message can be told from every other.

A fleet publishes to `telemetry/{site}/{device}/{metric}`, its own name being the site, so that what came by
CloudEvents can be told from what else came by HTTP. Each body carries, beside its value, the text
`{run}/{device}/{n}`, n counting up from 0 for each device: whoever reads the log, by whatever protocol, can say what
is missing and what came twice.
"""

import math
import random
import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

TOPIC = "telemetry"
FLEETS = ("mqtt", "coap", "http", "cloudevents", "amqp")
RATES = {"mqtt": 400.0, "coap": 60.0, "http": 120.0, "cloudevents": 120.0, "amqp": 200.0}  # messages a second
DEVICES = 6  # of each fleet
# Devices that publish at QoS 0 (MQTT), or with non-confirmable messages (CoAP), by fleet and number from 1 on; and how
# many of its messages one may overtake: a connection of MQTT keeps their order, CoAP's requests have none.
AT_MOST_ONCE = {("mqtt", 1): 0, ("mqtt", 4): 0, ("coap", 1): 64}
# The first device of each fleet has a faulty reading now and then, for the job to find.
FAULT_AT, FAULT_EVERY, FAULT_SWINGS = 240, 900, 10.0
_CLIMATE = {"temperature": (21.0, 4.0), "humidity": (55.0, 15.0), "pressure": (1013.0, 8.0)}  # mean and swing
_ENERGY = {"power": (340.0, 120.0), "voltage": (231.0, 3.0), "current": (1.5, 0.5)}
# CloudEvents and plain HTTP are one protocol to the log; metrics of their own let Spark tell the fleets apart.
METRICS = {fleet: _ENERGY if fleet == "cloudevents" else _CLIMATE for fleet in FLEETS}


class Target(NamedTuple):
    """The address of the gateway."""

    host: str = "127.0.0.1"
    port_offset: int = 0

    @property
    def mqtt(self) -> int:
        return 1883 + self.port_offset

    @property
    def coap(self) -> int:
        return 5683 + self.port_offset

    @property
    def amqp(self) -> int:
        return 5672 + self.port_offset

    @property
    def http(self) -> str:
        return f"http://{self.host}:{8080 + self.port_offset}"

    @property
    def rpc(self) -> str:
        return f"{self.host}:{8081 + self.port_offset}"

    @property
    def admin(self) -> str:
        return f"http://{self.host}:{8088 + self.port_offset}"


class Reading(NamedTuple):
    """One message to publish."""

    device: int
    mark: str  # unique: "{run}/{device's name}/{n}"
    address: str
    body: bytes


class Readings:
    """An endless supply of readings of one fleet, the devices in turn."""

    def __init__(self, fleet: str, run: str) -> None:
        self._fleet, self._run = fleet, run
        self._random = random.Random(f"{fleet}/{run}")
        self._counts = [0] * DEVICES
        self._next = 0

    def take(self, device: int | None = None) -> Reading:
        """Returns the next reading, of the device whose turn it is or of this one."""
        if device is None:
            device, self._next = self._next, (self._next + 1) % DEVICES
        n = self._counts[device]
        self._counts[device] = n + 1
        name = f"{self._fleet}-{device + 1}"
        metrics = METRICS[self._fleet]
        metric = tuple(metrics)[n % len(metrics)]
        mean, swing = metrics[metric]
        value = mean + swing * (math.sin(n / 50 + device) + self._random.gauss(0, 0.1)) / 2
        if device == 0 and n % FAULT_EVERY == FAULT_AT:
            value = mean + FAULT_SWINGS * swing
        mark = f"{self._run}/{name}/{n}"
        body = msgspec.json.encode({"value": round(value, 3), "id": mark})
        return Reading(device, mark, f"{TOPIC}/{self._fleet}/{name}/{metric}", body)


class Seen:
    """The messages of a run that have been seen. Memory stays small while a device's messages come nearly in order."""

    def __init__(self, run: str) -> None:
        self._mark = re.compile(re.escape(run).encode() + rb"/([a-z]+)-(\d+)/(\d+)")
        self._floors: dict[tuple[bytes, bytes], int] = {}  # all n below have been seen
        self._above: dict[tuple[bytes, bytes], set[int]] = {}
        self.by_fleet = dict.fromkeys(FLEETS, 0)  # distinct messages
        self.repeats = 0

    @property
    def total(self) -> int:
        """Distinct messages of all fleets."""
        return sum(self.by_fleet.values())

    def add(self, data: bytes) -> None:
        """Adds the marks of this run that some bytes hold."""
        for fleet, device, n in self._marks(data):
            key = (fleet, device)
            floor, above = self._floors.get(key, 0), self._above.setdefault(key, set())
            if n < floor or n in above:
                self.repeats += 1
                continue
            self._take(key, n)
            name = fleet.decode()
            self.by_fleet[name] = self.by_fleet.get(name, 0) + 1
            self.found(key, n)

    def found(self, key: tuple[bytes, bytes], n: int) -> None:
        """Does nothing: a subclass hears here of a message that was seen for the first time."""

    def _take(self, key: tuple[bytes, bytes], n: int) -> None:
        floor, above = self._floors.get(key, 0), self._above.setdefault(key, set())
        above.add(n)
        while floor in above:
            above.remove(floor)
            floor += 1
        self._floors[key] = floor

    def _marks(self, data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
        for match in self._mark.finditer(data):
            yield match[1], match[2], int(match[3])
