"""A fleet of devices by formula (`spark.generator.faults`): its messages in the order of sending, and its labels.

Device n has faults of one kind, the nth of those asked for in turn; the first is without. They are in the second half
of the run, spread over it, at times by chance. The same options and the same start give the same messages.
"""

import heapq
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from spark.errors import BadOption
from spark.generator import faults
from spark.generator.faults import KINDS, length_ms, warm_s
from spark.generator.labels import RUN, Label
from spark.generator.sensor import Sensor
from spark.telemetry.anomalies import LEVEL_SHIFT, SPIKE, STUCK

DEVICES_MAX = 100_000  # of one run
INTERVAL_S_MIN = 0.01  # between two messages of one device
_END_SHARE = 0.05  # of the run, after the last fault
LEVEL = "a device's name is a level of an address, without / + # and control characters"
_APART_MESSAGES = 20  # between two faults
_CLOCKS_MS = {faults.SKEW: faults.SKEW_MS, faults.AHEAD: faults.AHEAD_MS}
_COPIES = {faults.GAP: 0, faults.FLOOD: faults.FLOOD_COPIES, faults.DUPLICATES: 2}


class Reading(NamedTuple):
    """One message, to be sent."""

    due_ms: int  # when, since 1970
    device: str
    time_ms: int  # by the device's clock
    values: Mapping[str, float | str]
    number: int  # of the device's messages, from 0 on


def is_level(name: str) -> bool:
    """Returns whether a device's name can be a level of an address."""
    return bool(name) and name.isprintable() and not any(one in name for one in "/+#")


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The options of a run."""

    devices: int = 18
    rate: float = 1.0  # messages a second, of one device
    duration_s: float = 1_500.0
    faults: Sequence[str] = tuple(KINDS)
    faults_each: int = 1  # of each device but the clean ones
    seed: int = 1
    prefix: str = "gen"
    metric: str = "temperature"
    start_ms: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.devices <= DEVICES_MAX:
            raise BadOption("devices", f"must be from 1 to {DEVICES_MAX:,}")
        if not 0 < self.rate <= 1 / INTERVAL_S_MIN:
            raise BadOption("rate", f"must be messages a second of one device, {1 / INTERVAL_S_MIN:g} at most")
        if not 0 < self.duration_s < 1e9:
            raise BadOption("duration", "must be a number of seconds")
        if unknown := [kind for kind in self.faults if kind not in KINDS]:
            raise BadOption("faults", f"cannot be {unknown[0]}: the kinds are {', '.join(KINDS)}, or none")
        if self.faults_each < 1:
            raise BadOption("faults-each", "must be at least 1")
        if not is_level(self.prefix):
            raise BadOption("prefix", f"cannot be {self.prefix!r}: {LEVEL}")
        if not self.metric or self.metric == "value":
            raise BadOption("metric", f"cannot be {self.metric!r}: write a name such as temperature")
        for kind in self.faults:
            warm = warm_s(kind, self._interval_s)
            room = (length_ms(kind, self._interval_s) / 1_000 + _APART_MESSAGES * self._interval_s) * self.faults_each
            least_s = 2 * max(warm, room / (1 - 2 * _END_SHARE))
            if self.duration_s < least_s:
                raise BadOption("duration", f"must be at least {math.ceil(least_s)} s for {kind} (option faults)")

    @property
    def _interval_s(self) -> float:
        return 1 / self.rate

    @property
    def end_ms(self) -> int:
        """The end of the run."""
        return self.start_ms + round(self.duration_s * 1_000)

    def name(self, index: int) -> str:
        """Returns the name of a device."""
        return f"{self.prefix}{index:0{len(str(self.devices - 1))}d}"

    def kind(self, index: int) -> str | None:
        """Returns the kind of a device's faults."""
        kinds = (None, *self.faults)
        return kinds[index % len(kinds)]

    def labels(self) -> Iterator[Label]:
        """Yields for each device the time in which it is heard, and its faults."""
        for index in range(self.devices):
            name = self.name(index)
            yield Label(device=name, metric="", kind=RUN, start_ms=self.start_ms, end_ms=self.end_ms)
            for start_ms, end_ms in self._faults(index):
                kind = self.kind(index)
                assert kind is not None
                of_metric = self.metric if kind in (SPIKE, LEVEL_SHIFT, STUCK, faults.DRIFT) else ""
                told = KINDS[kind]
                yield Label(
                    device=name,
                    metric=of_metric,
                    kind=kind,
                    start_ms=start_ms,
                    end_ms=end_ms,
                    finds=told.finds,
                    quality=told.quality,
                )

    def readings(self) -> Iterator[Reading]:
        """Yields the messages of all devices in the order in which they are due."""
        return heapq.merge(*(self._of_device(index) for index in range(self.devices)), key=lambda one: one.due_ms)

    def _faults(self, index: int) -> list[tuple[int, int]]:
        """Returns the start and end of each fault of a device."""
        kind = self.kind(index)
        if kind is None:
            return []
        chance = random.Random(f"{self.seed}/{index}/faults")
        half_ms = self.duration_s * 500
        slot_ms = half_ms * (1 - 2 * _END_SHARE) / self.faults_each
        long_ms = length_ms(kind, self._interval_s)
        found = []
        for n in range(self.faults_each):
            free_ms = max(0.0, slot_ms - long_ms - _APART_MESSAGES * self._interval_s * 1_000)
            start_ms = self.start_ms + round(half_ms + n * slot_ms + chance.uniform(0, free_ms))
            found.append((start_ms, start_ms + long_ms))
        return found

    def _of_device(self, index: int) -> Iterator[Reading]:
        name, kind, sensor = self.name(index), self.kind(index), Sensor(random.Random(f"{self.seed}/{index}"))
        interval_ms = self._interval_s * 1_000
        first_ms = self.start_ms + interval_ms * index / self.devices
        spans = iter(self._faults(index))
        span, number, begun = next(spans, None), 0, False
        for n in range(math.ceil((self.end_ms - first_ms) / interval_ms)):
            due_ms = round(first_ms + n * interval_ms)
            if span is not None and due_ms >= span[1]:
                span, begun = next(spans, None), False
            if kind is None or span is None or due_ms < span[0]:
                yield Reading(due_ms, name, due_ms, {self.metric: round(sensor.read(), 3)}, number)
                number += 1
                continue
            value, begun = sensor.read_wrong(kind, first=not begun), True
            time_ms = due_ms + _CLOCKS_MS.get(kind, 0)
            for copy in range(_COPIES.get(kind, 1)):
                at_ms = time_ms
                if kind == faults.FLOOD and copy:
                    at_ms, value = time_ms + copy, sensor.read()
                yield Reading(due_ms, name, at_ms, {self.metric: round(value, 3)}, number)
                number += 1
