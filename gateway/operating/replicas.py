"""Replicas that leave a group for good."""

from controller.client import Group, ReplicaInSync, UnknownGroup
from controller.remote import RemoteController

__all__ = ["forget", "retire"]


async def retire(controller: RemoteController, number: int, replica: int, *, forced: bool) -> Group:
    """Take a replica out of its group, in sync or not, alive or not; the group then. Raises `ControllerError`."""
    await controller.barrier()
    return await controller.retire_replica(number, replica, forced=forced)


async def forget(controller: RemoteController, number: int, replica: int) -> Group:
    """Forget a replica that is silent and not in sync; the group then. Raises `ControllerError`."""
    await controller.barrier()
    if controller.group(number) is None:
        raise UnknownGroup(f"there is no store group {number}")
    for route in await controller.routes(number):
        alive = next((one for one in route.replicas if one.id == replica and one.alive), None)
        if alive is not None and route.group == number:
            raise ReplicaInSync(
                f"replica {replica} of group {number} is alive at {alive.address}: stop it first, or retire it"
            )
    return await controller.forget_replica(number, replica)
