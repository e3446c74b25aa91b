"""The part of the adapter port for protocols that can ask their peers to publish less."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gateway.port.adapter import Effect


@runtime_checkable
class PressedAdapter(Protocol):
    """An adapter that is called when memory or disk is short, ahead of the refusals that may follow."""

    def pressed(self, why: str, *, now_ms: int) -> Sequence[Effect]:
        """Takes the name of the scarce resource, as a text for the peer; "" when there is enough again."""
