"""The controllers of a store group's nodes: one, which leads."""

import pytest

from tests.support.controller.controllers import Controllers


@pytest.fixture
async def controllers(tmp_path):
    async with Controllers(tmp_path / "controllers", count=1) as found:
        await found.leader()
        yield found
