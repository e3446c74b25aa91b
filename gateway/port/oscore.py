"""OSCORE's security contexts at the port (RFC 8613): requests that CoAP's adapter makes by `Call`.

A context is used by one socket of one process at a time, for only a process that has seen the message before knows a
replay. A socket that uses a context learns by `NextLostContexts`, one call at a time, that it has lost it; its next
such call says that it has taken note, and only then another socket may use the context.
"""

from collections.abc import Sequence

import msgspec

from gateway.domain.principal import Principal
from gateway.port.adapter import Request


class ContextKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The input parameters of a context (RFC 8613, 3.2), as a server has them: `sender_id` is its own."""

    secret: bytes
    salt: bytes
    sender_id: bytes
    recipient_id: bytes
    id_context: bytes | None
    algorithm: int  # its number in COSE

    def __repr__(self) -> str:
        return "ContextKeys(***)"


class FindKeys(Request[ContextKeys], frozen=True, kw_only=True):
    """Asks for the keys of a client's context, by which messages of the client are told from those of others.

    Refused with UNAUTHENTICATED where there is none.
    """

    kid: bytes
    id_context: bytes | None


class OpenedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A context that this socket may use. The numbers from `first` on, as many as were asked for, are its own to use.

    `taken` is True where it was opened for this socket now: whatever the socket knew of it before is void. `unused` is
    True where it was never used, so that no message can be a replay. `elsewhere` is True where another socket goes on
    using it: the numbers serve to ask the client for a proof, and for nothing else.
    """

    name: str
    keys: ContextKeys
    principal: Principal
    first: int
    taken: bool
    unused: bool
    elsewhere: bool = False


class OpenContext(Request[OpenedContext], frozen=True, kw_only=True):
    """Use, or go on using, the context of a client: reserves `numbers` sender sequence numbers, durably.

    It is taken from another socket that uses it only where a message in it is `proven` to be no replay.

    Refused with UNAUTHENTICATED where there is none, with CONFLICT while another process does not let go of it.
    """

    kid: bytes
    id_context: bytes | None
    numbers: int
    proven: bool = False


class NextLostContexts(Request[Sequence[str]], frozen=True, kw_only=True):
    """Waits for contexts, by name, that this socket must not use any more. Answered when there are some."""
