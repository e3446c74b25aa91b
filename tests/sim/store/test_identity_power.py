"""A replica's id, when the power fails at any step of being given one."""

import contextlib
import random
from pathlib import Path

import pytest

from controller.api.client import GroupConfig, Replica
from controller.api.commands import AddGroup
from controller.node.local import LocalController
from store.node.replica.identity import register
from tests.sim.store.faulty_files import Disk

pytestmark = pytest.mark.anyio

GROUP, HOME, STEPS = 3, Path("/data"), 12


class PowerFailure(Exception):
    pass


def about(id_, check):
    return Replica(id=id_, node="n", address="host:1", check=check)


@pytest.mark.parametrize("seed", range(10))
async def test_an_id_that_was_registered_is_never_lost(tmp_path, seed):
    """Registered is what the file on disk says; an id that only the file knows may be somebody else's by now."""
    for step in range(1, STEPS):
        controller = LocalController.open(tmp_path / str(step), now_ms=lambda: 0)
        await controller.do(AddGroup(number=GROUP, config=GroupConfig(replicas=3)))
        disk = Disk(random.Random(seed * 100 + step))
        disk.mount(HOME)
        left = step

        def fail(_operation):
            nonlocal left
            left -= 1
            if left == 0:
                raise PowerFailure

        disk.on_operation = fail
        with contextlib.suppress(PowerFailure):  # or it is through before
            await register(controller, HOME, GROUP, about, files=disk)
        disk.on_operation = lambda _operation: None
        disk.lose_power()
        found, group = await register(controller, HOME, GROUP, about, files=disk)
        assert [one.id for one in group.replicas] == [found.id] == [1]
        await controller.close()
