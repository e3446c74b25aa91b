"""Series with labelled faults, by formula: what detectors are measured with (messages: `spark.generator`).

A clean series is `base + swing sin(2 pi n / 600 + phase) + noise N(0, 1)`, one sample a second. Faults are put into it
at known times: a spike (one sample off by 12 to 30 sigmas of the noise and the swing), a level shift (from there on off
by 8 to 15), a stuck sensor (60 equal values).
"""

import math
import random
from typing import NamedTuple


class Fault(NamedTuple):
    kind: str
    start: int  # the number of its first sample
    end: int  # and of the one after its last


def series(seed: int, count: int, faults: int) -> tuple[list[float], list[Fault]]:
    """Returns values, and the faults among them, by time."""
    chance = random.Random(seed)
    base, swing, noise = chance.uniform(-50, 1_000), chance.uniform(0, 3), chance.uniform(0.2, 2)
    phase = chance.uniform(0, 2 * math.pi)
    values = [base + swing * math.sin(2 * math.pi * n / 600 + phase) + chance.gauss(0, noise) for n in range(count)]
    sigma = math.hypot(noise, swing / math.sqrt(2))
    found = []
    slot = (count - 300) // max(1, faults)
    for n in range(faults):
        at = 200 + n * slot + chance.randrange(max(1, slot - 160))
        kind = chance.choice(("spike", "level_shift", "stuck"))
        side = chance.choice((-1, 1))
        if kind == "spike":
            values[at] += side * chance.uniform(12, 30) * sigma
            found.append(Fault(kind, at, at + 1))
        elif kind == "level_shift":
            by = side * chance.uniform(8, 15) * sigma
            values[at:] = [value + by for value in values[at:]]
            found.append(Fault(kind, at, at + 40))
        else:
            values[at : at + 60] = [values[at]] * 60
            found.append(Fault(kind, at, at + 60))
    return values, found
