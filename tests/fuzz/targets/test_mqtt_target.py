"""A short run of what `make fuzz` does for long."""

from random import Random

import pytest

from tests.fuzz.targets import mqtt_target
from tests.fuzz.targets.lots import LOT
from tests.fuzz.targets.mqtt_inputs import SHAPES, VERSIONS, hurt


@pytest.mark.parametrize("target", mqtt_target.TARGETS)
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_found(target, seed):
    told: list[str] = []
    assert mqtt_target.run(target, seed, LOT, tell=told.append) == 0, "\n".join(told)


def test_a_finding_is_told_with_its_lot(monkeypatch):
    def broken(first, body, version):
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(mqtt_target, "decode", broken)
    told: list[str] = []
    assert mqtt_target.run("decoder", 7, 100, lot=3, tell=told.append) == 1
    assert told[0].startswith("decoder: --seed 7 --lot 3: ")
    assert "broken on purpose" in told[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_inputs_are_the_same_for_the_same_seed_and_hurt_every_type(version):
    made = [[hurt(SHAPES[version], random) for _ in range(2_000)] for random in (Random(5), Random(5))]
    assert made[0] == made[1]
    types = {data[0] >> 4 for data in made[0]}
    assert types == set(range(16))
