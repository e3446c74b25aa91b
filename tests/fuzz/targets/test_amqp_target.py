"""A short run of what `make fuzz` does for long."""

from random import Random

import pytest

from tests.fuzz.targets import amqp_target


@pytest.mark.parametrize("target", amqp_target.TARGETS)
def test_nothing_is_found(target):
    told: list[str] = []
    assert amqp_target.run(target, 1, 2_000, tell=told.append) == 0, "\n".join(told)


def test_a_finding_is_told_with_its_lot(monkeypatch):
    def broken(payload):
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(amqp_target, "read_method", broken)
    told: list[str] = []
    assert amqp_target.run("decoder", 7, 100, lot=3, tell=told.append) == 1
    assert told[0].startswith("decoder: --seed 7 --lot 3: ")
    assert "broken on purpose" in told[1]


def test_inputs_are_the_same_for_the_same_seed():
    assert amqp_target.hurt(b"x" * 50, Random(5)) == amqp_target.hurt(b"x" * 50, Random(5))
