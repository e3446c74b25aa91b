"""The part of the adapter port for connections that an operator is shown, and may close."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec

from gateway.port.adapter import Effect


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that is open, as its adapter knows it."""

    vhost: str
    channels: int
    consumers: int
    unacknowledged: int


@runtime_checkable
class OperatedAdapter(Protocol):
    """An adapter whose connections are listed, and closed one by one."""

    def describe(self) -> Described | None:
        """Returns the state of the connection; None while it is not open."""

    def force_close(self, reason: str, *, now_ms: int) -> Sequence[Effect]:
        """Ends the connection in its protocol's words, which say why."""
