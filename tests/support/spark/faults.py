"""Series and messages with labelled faults, by formula: what detectors are measured with.

A clean series is `base + swing sin(2 pi n / 600 + phase) + noise N(0, 1)`, one sample a second. Faults are put into it
at known times: a spike (one sample off by 12 to 30 sigmas of the noise and the swing), a level shift (from there on off
by 8 to 15), a stuck sensor (60 equal values).

Messages are of devices with one fault each, from the middle of their time on, a message a second: `FLEET` says which.
"""

import math
import random
from collections.abc import Iterator
from typing import NamedTuple


class Fault(NamedTuple):
    kind: str
    start: int  # the number of its first sample
    end: int  # and of the one after its last


FLEET = {  # device -> its fault
    "clean": "none",
    "drifts": "the value rises by 3 sigmas of its noise in five minutes",
    "spikes": "one value is off by 40 sigmas",
    "sticks": "60 equal values",
    "pauses": "a gap: no message for two minutes",
    "skewed": "its clock is 45 s behind",
    "ahead": "its clock is an hour ahead",
    "repeats": "every message comes twice",
    "floods": "twenty messages a second, for a minute",
}


def messages(seed: int, start_ms: int, seconds: int) -> Iterator[tuple[str, int, int, float]]:
    """Yields (device, its time, the time of storage, value) in the order of storage, the fault in the second half."""
    chance, middle, held = random.Random(seed), seconds // 2, 0.0
    for second in range(seconds):
        stored_ms = start_ms + second * 1_000
        for device in FLEET:
            value = 20 + chance.gauss(0, 0.5)
            faulty = second >= middle
            if device == "drifts" and faulty:
                value += 1.5 * min(1.0, (second - middle) / 300)
            elif device == "spikes" and second == middle:
                value += 20
            elif device == "sticks" and middle <= second < middle + 60:
                held = value = held if second > middle else value
            elif device == "pauses" and middle <= second < middle + 120:
                continue
            at_ms = stored_ms - {"skewed": 45_000, "ahead": -3_600_000}.get(device, 0) * faulty
            copies = 20 if device == "floods" and middle <= second < middle + 60 else 1
            for n in range(2 if device == "repeats" and faulty else copies):
                yield device, at_ms + (n if copies > 1 else 0), stored_ms, value


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
