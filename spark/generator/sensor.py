"""The values of one device, by the formula of `spark.generator.faults`."""

import math
import random
from collections.abc import Callable, Mapping

from spark.generator import faults
from spark.generator.faults import KINDS
from spark.telemetry.anomalies import LEVEL_SHIFT, SPIKE, STUCK

_PERIOD = 600  # messages of one swing


class Sensor:
    """One device's sensor; `chance` gives its level, swing and noise, and then each value."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._level, self._swing, self._noise = chance.uniform(-50, 1_000), chance.uniform(0, 3), chance.uniform(0.2, 2)
        self._phase, self._number, self._held = chance.uniform(0, 2 * math.pi), 0, 0.0
        self._sigma = math.hypot(self._noise, self._swing / math.sqrt(2))
        self._spoilers: Mapping[str, Callable[[float, bool], float]] = {
            SPIKE: self._spike,
            LEVEL_SHIFT: self._shift,
            STUCK: self._stick,
            faults.DRIFT: self._drift,
        }

    def read(self) -> float:
        """Returns the next value, which is right."""
        wave = math.sin(2 * math.pi * self._number / _PERIOD + self._phase)
        self._number += 1
        return self._level + self._swing * wave + self._chance.gauss(0, self._noise)

    def read_wrong(self, kind: str, *, first: bool) -> float:
        """Returns the next value while there is a fault; `first`: it is the first one of this fault."""
        value = self.read()
        spoil = self._spoilers.get(kind)
        return value if spoil is None else spoil(value, first)

    def _off(self, sigmas: tuple[float, float]) -> float:
        return self._chance.choice((-1, 1)) * self._chance.uniform(*sigmas) * self._sigma

    def _spike(self, value: float, _first: bool) -> float:
        return value + self._off(faults.SPIKE_SIGMAS)

    def _shift(self, value: float, first: bool) -> float:
        by = self._off(faults.SHIFT_SIGMAS) if first else 0.0
        self._level += by
        return value + by

    def _stick(self, value: float, first: bool) -> float:
        self._held = value if first else self._held
        return self._held

    def _drift(self, value: float, _first: bool) -> float:
        step = faults.DRIFT_SIGMAS * self._sigma / KINDS[faults.DRIFT].messages
        self._level += step
        return value + step
