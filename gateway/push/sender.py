"""The way to a sink in any protocol: `gateway.push.http_sender` is one, others are registered when a process starts.

A sender keeps the connections that it needs, and opens them when an attempt asks for it. It attempts nothing again by
itself: the outbox decides when an event is attempted, and when again, for all protocols alike.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol, TypeAlias

from gateway.port.push import SubscriptionSpec
from gateway.push.context import PushContext
from gateway.push.outbox import Attempt, Failure
from gateway.push.spec import SubscriptionRecord


class Consent(NamedTuple):
    """The answer of a sink that was asked whether it wants events; `refusal` is "" where it does."""

    refusal: str
    rate_per_s: float | None = None  # that it allows; None: it says nothing


class EventSender(Protocol):
    """The way to the sink of one subscription, as long as this process runs it."""

    async def consent(self) -> Consent:
        """Asks the sink whether it wants events."""

    async def send(self, one: Attempt) -> Failure | None:
        """Sends an event; None once the sink has taken it. Only an error of our own is raised."""

    async def close(self) -> None:
        """Ends the connections."""


class SinkKind(Protocol):
    """A protocol that sinks are spoken to in."""

    @property
    def ports(self) -> Mapping[str, int]:
        """Returns the schemes of its URLs, with the port of each where the URL says none."""

    @property
    def settings(self) -> frozenset[str]:
        """Returns the members of `protocolsettings` that are for this protocol, and not for all."""

    def check(self, spec: SubscriptionSpec) -> None:
        """Raises `FilterError` for a subscription that cannot be; its sink is a URL of this protocol."""

    def sender(self, record: SubscriptionRecord, context: PushContext) -> EventSender:
        """Returns the way to the sink of a subscription; nothing is connected yet."""


SinkKinds: TypeAlias = Mapping[str, SinkKind]  # by `protocol`
