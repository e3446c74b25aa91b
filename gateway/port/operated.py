"""The part of the adapter port for connections and sessions that an operator is shown, and connections to close."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from gateway.port.adapter import Adapter, Effect


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """A connection that is open, as its adapter knows it."""

    vhost: str
    channels: int
    consumers: int
    unacknowledged: int
    blocked: bool = False  # its client has been asked not to publish for now


@runtime_checkable
class OperatedAdapter(Protocol):
    """An adapter whose connections are listed, and closed one by one."""

    def describe(self) -> Described | None:
        """Returns the state of the connection; None while it is not open."""

    def force_close(self, reason: str, *, now_ms: int) -> Sequence[Effect]:
        """Ends the connection in its protocol's words, which say why."""


class SubscribedFilter(NamedTuple):
    """A subscription of a client: its address filter, or `$share/GROUP/FILTER`, and the greatest quality of service."""

    pattern: str
    qos: int | None = None  # None: the protocol knows none


@runtime_checkable
class SessionFactory(Protocol):
    """An adapter's factory that reads the subscriptions of its sessions."""

    def open_subscriptions(self, adapter: Adapter) -> Sequence[SubscribedFilter]:
        """Returns the subscriptions of a connection that is open, one of this factory's."""

    def saved_subscriptions(self, state: bytes) -> Sequence[SubscribedFilter] | None:
        """Returns the subscriptions in the state stored by `SaveSession`; None for bytes that are not understood."""
