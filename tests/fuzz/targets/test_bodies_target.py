"""A short run of what `make fuzz` does for long with bodies of telemetry."""

import pytest

pytest.importorskip("pyarrow")

from spark.decode import cbor
from tests.fuzz.targets import bodies_target


@pytest.mark.parametrize("target", bodies_target.TARGETS)
def test_nothing_is_found(target):
    told: list[str] = []
    assert bodies_target.run(target, 1, 1_000, tell=told.append) == 0, "\n".join(told)


def test_a_reader_that_stumbles_is_found(monkeypatch):
    def broken(tag: object, value: object) -> object:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(cbor, "_tagged", broken)
    told: list[str] = []
    assert bodies_target.run("cbor_items", 7, 200, lot=3, tell=told.append) == 1
    assert told[0].startswith("cbor_items: --seed 7 --lot 3: ")
    assert "unexpected ZeroDivisionError: broken on purpose" in told[1]
