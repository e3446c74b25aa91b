"""The controller's directory: who may read it, and what is said when it is damaged."""

import os

import pytest

from controller.api.client import ControllerDamaged
from controller.api.commands import CreateTopic
from controller.node.local import LocalController

pytestmark = pytest.mark.anyio


def opened(directory):
    return LocalController.open(directory, now_ms=lambda: 1)


async def test_nobody_else_reads_what_is_created(tmp_path):
    before = os.umask(0)
    try:
        controller = opened(tmp_path / "new" / "controller")
        await controller.do(CreateTopic(name="orders"))
        await controller.close()
    finally:
        os.umask(before)
    found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert found == {
        "new": 0o700,
        "new/controller": 0o700,
        "new/controller/raft": 0o700,
        "new/controller/raft/data.mdb": 0o600,
        "new/controller/raft/lock.mdb": 0o600,
        "new/controller/raft/raft.lock": 0o600,
        "new/controller/raft/raft.seal": 0o600,
    }


@pytest.mark.parametrize("damage", ["cut", "garbage"])
async def test_damage_is_said_in_one_error(tmp_path, damage):
    controller = opened(tmp_path)
    for n in range(50):
        await controller.do(CreateTopic(name=f"topic/{n}", config={"note": "x" * 500}))
    await controller.close()
    path = tmp_path / "raft" / "data.mdb"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"x" * len(whole))
    with pytest.raises(
        ControllerDamaged, match=r"if it is the only one, put a copy of the directory in its place$"
    ) as caught:
        opened(tmp_path)
    assert "backup" not in str(caught.value)  # of no use to one of several: docs/cluster.md says the same
    path.write_bytes(whole)
    controller = opened(tmp_path)
    assert len(controller.topics()) == 50
    await controller.close()
