"""Controllers that an operator adds."""

from controller.api.requests import AddMember
from controller.remote.remote import RemoteController
from gateway.config.cluster_settings import NodeAddress
from store.base.process_errors import ConfigError


async def add(controller: RemoteController, id_: int, address: str) -> str | None:
    """Adds a controller, or says where one is now; returns the address that it had, None for a new one.

    Raises `ConfigError` for an invalid address, `ControllerError`.
    """
    try:
        NodeAddress.parse(address)
    except ValueError as error:
        raise ConfigError(f"{error}; write where the controller serves") from error
    before = next(
        (
            member.address
            for status in (await controller.controllers()).values()
            if status is not None and status.role == "leader"
            for member in status.members
            if member.id == id_
        ),
        None,
    )
    await controller.do(AddMember(id=id_, address=address))
    return before
