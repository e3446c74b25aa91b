"""Replicas that leave a group for good, and those that are to look for damage in their logs."""

import asyncio
from typing import Any

import grpc
import grpc.aio

from controller.api.client import Group, ReplicaInSync, UnknownGroup, UnknownReplica
from controller.api.commands import ForgetReplica, RetireReplica
from controller.remote.remote import RemoteController
from store.base.process_errors import HeadgateError
from store.rpc import replica_wire as wire
from store.rpc.replica_wire import Verified, VerifyRequest

_NO_ANSWER = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}

ANSWER_S = 5.0  # that a replica has for saying how far it is
LOOK_S = 0.2  # between two questions


class CannotVerify(HeadgateError):
    """The replica has not read its log."""


async def retire(controller: RemoteController, number: int, replica: int, *, forced: bool) -> Group:
    """Takes a replica out of its group, in sync or not, alive or not; the group then. Raises `ControllerError`."""
    await controller.barrier()
    return await controller.do(RetireReplica(group=number, replica=replica, forced=forced))


async def forget(controller: RemoteController, number: int, replica: int) -> Group:
    """Forgets a replica that is silent and not in sync; returns the group then. Raises `ControllerError`."""
    await controller.barrier()
    there = controller.group(number)
    if there is None:
        raise UnknownGroup(f"there is no store group {number}")
    for route in await controller.routes(number):
        alive = next((one for one in route.replicas if one.id == replica and one.alive), None)
        if alive is not None and route.group == number and there.replica(replica) is not None:
            raise ReplicaInSync(
                f"replica {replica} of store group {number} is alive at {alive.address}: stop it first, or retire it"
            )
    return await controller.do(ForgetReplica(group=number, replica=replica))


async def verify(controller: RemoteController, number: int, replica: int, credentials: Any = None) -> Verified:
    """Asks a replica to read all of its log; returns its findings. Raises `ControllerError`, `CannotVerify`.

    It repairs damage by itself, from another replica, and continues when no command waits for it any more.
    """
    await controller.barrier()
    there = controller.group(number)
    if there is None:
        raise UnknownGroup(f"there is no store group {number}")
    one = there.replica(replica)
    if one is None:
        raise UnknownReplica(f"store group {number} has no replica {replica}")
    channel = wire.open_channel(one.address, credentials)
    begin = True
    try:
        ask = channel.unary_unary(wire.path(wire.VERIFY))
        while True:
            answer = await ask(wire.encode(VerifyRequest(number, begin)), timeout=ANSWER_S)
            found = wire.decode(answer, Verified)
            if not found.running:
                return found
            begin = False
            await asyncio.sleep(LOOK_S)
    except grpc.aio.AioRpcError as error:
        if error.code() in _NO_ANSWER:
            raise CannotVerify(
                f"replica {replica} of store group {number} does not answer at {one.address}: start it, and repeat this"
            ) from error
        raise CannotVerify(f"replica {replica} of store group {number} at {one.address}: {error.details()}") from error
    finally:
        await channel.close()
