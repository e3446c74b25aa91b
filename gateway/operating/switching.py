"""A planned change of master, as an operator asks for it: the master itself hands over."""

from typing import Any

import grpc
import grpc.aio

from controller.api.client import ControllerClient, Group, NoMaster, UnknownGroup
from store.base.process_errors import HeadgateError
from store.rpc import replica_wire as wire

PATIENCE_S = 15.0  # draining takes 5 s at most


class CannotHandOver(HeadgateError):
    """The master did not hand over."""


async def switch_over(controller: ControllerClient, group: int, replica: int, credentials: Any = None) -> Group:
    """Hands a group over from its master to a replica; returns it. Raises `ControllerError`, `CannotHandOver`."""
    there = controller.group(group)
    if there is None:
        raise UnknownGroup(f"there is no store group {group}")
    master = there.replica(there.master) if there.master is not None else None
    if master is None:
        raise NoMaster(f"store group {group} has no master that could hand over")
    channel = wire.open_channel(master.address, credentials)
    try:
        ask = channel.unary_unary(wire.path(wire.SWITCH_OVER))
        await ask(wire.encode(wire.SwitchRequest(group, replica)), timeout=PATIENCE_S)
    except grpc.aio.AioRpcError as error:
        raise CannotHandOver(f"store group {group}: {_text_of(error.details() or '')}") from error
    finally:
        await channel.close()
    await controller.barrier()
    found = controller.group(group)
    assert found is not None
    return found


def _text_of(details: str) -> str:
    """Returns the text of an error that a node has answered with, without the name of its class."""
    name, _, text = details.partition(": ")
    return text if text and name.isidentifier() else details
