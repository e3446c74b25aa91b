"""The principal of a connection."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.domain.access import NOTHING, OPEN, Identity, Permissions


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The authenticated identity of a connection.

    Once `expires_at_ms` has come it is not valid any more: an adapter ends the connection, or whatever it does for this
    principal alone, in its protocol's words.
    """

    name: str  # "" is the anonymous principal
    device: str = ""  # the identity that a certificate or a token claims; `name` where nothing claims one
    guest: bool = False  # let in by the password that every guest has
    trusted_gateway: bool = False  # may speak for other devices
    rights: Mapping[str, Any] = msgspec.field(default_factory=dict)  # of the user of this name
    expires_at_ms: int | None = None
    final: bytes = b""  # the last word of the mechanism, for the client
    secret: bytes = b""  # known to gateways alone: texts for this principal are signed with it
    permissions: Permissions = OPEN  # its rights

    def __post_init__(self) -> None:
        if not self.device:
            msgspec.structs.force_setattr(self, "device", self.name)

    @property
    def anonymous(self) -> bool:
        """Returns whether the principal is anonymous: the client has not authenticated."""
        return not self.name


def principal_of(identity: Identity) -> Principal:
    """Returns a principal for work in the name of a client that may be gone; its rights are checked elsewhere."""
    return Principal(
        name=identity.name, device=identity.device, guest=identity.guest, permissions=Permissions(identity, NOTHING)
    )
