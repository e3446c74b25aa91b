"""Controllers that an operator adds."""

from controller.api.requests import AddMember
from controller.remote.remote import RemoteController
from gateway.config.cluster_settings import NodeAddress
from store.base.process_errors import ConfigError, HeadgateError


class AddressTaken(HeadgateError):
    """Raised for the address of another controller."""


async def add(controller: RemoteController, id_: int, address: str) -> str | None:
    """Adds a controller, or says where one is now; returns the address that it had, None for a new one.

    Raises `ConfigError` for an invalid address, `AddressTaken`, `ControllerError`.
    """
    try:
        NodeAddress.parse(address)
    except ValueError as error:
        raise ConfigError(f"{error}; write where the controller serves") from error
    members = {
        member.id: member.address
        for status in (await controller.controllers()).values()
        if status is not None and status.role == "leader"
        for member in status.members
    }
    before = members.get(id_)
    there = next((other for other, at in members.items() if at == address and other != id_), None)
    if there is not None:
        raise AddressTaken(
            f"controller {there} is at {address}: name another address, or remove it first with "
            f"headgate cluster members remove {there}"
        )
    await controller.do(AddMember(id=id_, address=address))
    return before
