"""Bytes that are no command and no snapshot: one error, or something that can be applied."""

import contextlib
import random

import pytest

from controller.api.client import ControllerDamaged, ControllerError, GroupConfig, Replica
from controller.api.commands import AddGroup, CreateTopic, ElectMaster, RegisterReplica, decode_command, encode_command
from controller.metadata.state import MetadataState

COMMANDS = [
    AddGroup(number=0, config=GroupConfig(replicas=3, min_in_sync=2), time_ms=1),
    RegisterReplica(group=0, replica=Replica(id=1, node="n", address="n:1", check="c"), time_ms=2),
    ElectMaster(group=0, candidate=1, master_epoch=0, sync_epoch=0, time_ms=3),
    CreateTopic(name="a", queues=3, config={"retention_ms": 5}, topics_max=9, queues_max=99, time_ms=4),
]


def damaged(data, draw):
    """Returns data that is cut, has a byte changed, or is replaced altogether."""
    what = draw.randrange(3)
    if what == 0:
        return data[: draw.randrange(len(data))]
    if what == 1:
        at = draw.randrange(len(data))
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    return draw.randbytes(draw.randrange(40))


@pytest.mark.parametrize("seed", range(4))
def test_damaged_commands_are_refused_or_applied(seed):
    draw, state = random.Random(seed), MetadataState()
    for _ in range(1000):
        for command in COMMANDS:
            with contextlib.suppress(ControllerDamaged):
                found = decode_command(damaged(encode_command(command), draw))
                with contextlib.suppress(ControllerError):
                    state.apply(found)
    assert MetadataState.restore(state.snapshot()).snapshot() == state.snapshot()


@pytest.mark.parametrize("seed", range(4))
def test_damaged_snapshots_are_refused_or_restored(seed):
    draw, state = random.Random(seed), MetadataState()
    for command in COMMANDS:
        state.apply(command)
    snapshot = state.snapshot()
    for _ in range(2000):
        with contextlib.suppress(ControllerDamaged):
            restored = MetadataState.restore(damaged(snapshot, draw))
            restored.snapshot()
