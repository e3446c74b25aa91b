"""A short run of each of the targets that `make fuzz` runs for long."""

import pytest

from tests.fuzz.targets import coap_target, events_target, http_target, requests_target

MODULES = (coap_target, events_target, http_target, requests_target)


@pytest.mark.parametrize(
    ("module", "target"),
    [pytest.param(one, name, id=f"{one.__name__.split('.')[-1]}-{name}") for one in MODULES for name in one.TARGETS],
)
def test_nothing_is_found(module, target):
    told: list[str] = []
    assert module.run(target, 1, 1_000, tell=told.append) == 0, "\n".join(told)


def test_every_operation_that_takes_json_is_fuzzed():
    assert set(requests_target.SHAPES) == set(requests_target.WITH_JSON)
