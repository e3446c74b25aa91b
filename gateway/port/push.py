"""Subscriptions whose events the gateway delivers itself: requests that adapters make by `Call`, and sinks' requests.

The objects are those of the CloudEvents Subscriptions API, 3.2.1. Secrets are taken and never given back.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from gateway.port.adapter import Request
from gateway.port.kv import Match
from store.api.message import Message

CONCURRENCY_MAX: Final = 256  # deliveries of one subscription that are attempted at a time


class _Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a subscription, as JSON has it."""


class SubscriptionConfig(_Value, frozen=True, kw_only=True):
    """`config`: the events that are generated. `addresses` are filters as MQTT has them."""

    addresses: tuple[str, ...] = ("#",)
    start: Literal["latest", "earliest"] = "latest"


class ProtocolSettings(_Value, frozen=True, kw_only=True):
    """`protocolsettings`: the transmission. Times are seconds. The first ones are for one protocol each."""

    method: str = "POST"
    headers: Mapping[str, str | None] = msgspec.field(default_factory=dict)  # values are write-only: None as shown
    signingsecret: str | None = None  # write-only
    topicname: str | None = None  # of MQTT, as all to clientid
    qos: Literal[0, 1, 2] = 1
    retain: bool = False
    expiry: int | None = None
    userproperties: Mapping[str, str] = msgspec.field(default_factory=dict)
    clientid: str | None = None
    exchange: str = "amq.topic"  # of AMQP, as all to mandatory
    routingkey: str = "{key}"
    mandatory: bool = False
    mode: Literal["binary", "structured"] | None = None  # None: binary, and structured where requests are signed
    concurrency: int = 8
    rate: float | None = None  # deliveries a second
    timeout: float = 30.0
    retrymin: float = 1.0
    retrymax: float = 300.0
    attempts: int | None = None  # until an event goes to the dead letter address
    deadletter: str | None = None


class SinkCredential(_Value, frozen=True, kw_only=True):
    """`sinkcredential`; secret and access token are write-only."""

    credentialtype: str
    identifier: str | None = None
    secret: str | None = None
    accesstoken: str | None = None
    accesstokenexpiresutc: str | None = None
    accesstokentype: str | None = None


class SubscriptionSpec(_Value, frozen=True, kw_only=True):
    """A subscription as a client proposes it; an `id` that it says is ignored, or has to be that of the path."""

    sink: str
    protocol: str
    id: str | None = None
    source: str | None = None
    types: tuple[str, ...] | None = None
    config: SubscriptionConfig = SubscriptionConfig()
    filters: tuple[Any, ...] = ()
    sinkcredential: SinkCredential | None = None
    protocolsettings: ProtocolSettings = ProtocolSettings()


class DeliveryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a subscription, as its owner stored it last: some seconds old at most while anything happens.

    `state` is `pending` (no process runs it yet, or the sink has not consented), `active`, `failing` (its breaker is
    open), `paused`, or `gone` (the sink answered 410; resume it, or change the sink).
    """

    state: str = "pending"
    delivered: int = 0
    failed: int = 0  # attempts
    dead: int = 0  # events at the dead letter address
    expired: int = 0  # events that were not sent as their time was over
    looped: int = 0  # events that were not sent as the sink, a gateway, has had them before
    lost: int = 0  # ranges of the log that are lost to damage
    held: int = 0  # events in flight, or waiting for another attempt
    behind: int = 0  # bytes of the logs that have not been looked at
    error: str = ""  # of the last attempt, until one is successful
    time_ms: int = 0  # of this status


class PushSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that there is; `spec` has no secrets."""

    id: str
    revision: int
    spec: SubscriptionSpec
    status: DeliveryStatus


class SubscriptionsPage(msgspec.Struct, frozen=True, kw_only=True):
    """Subscriptions by id; `after` is for the next page, None at the end."""

    subscriptions: Sequence[PushSubscription]
    after: str | None


class CreateSubscription(Request[PushSubscription], frozen=True, kw_only=True):
    """Creates a subscription. Refused with MALFORMED for invalid settings, FORBIDDEN for its sink, QUOTA."""

    spec: SubscriptionSpec


class GetSubscription(Request[PushSubscription], frozen=True, kw_only=True):
    """Asks for a subscription. Refused with NOT_FOUND."""

    id: str


class ListSubscriptions(Request[SubscriptionsPage], frozen=True, kw_only=True):
    """Asks for the subscriptions that the asker may see."""

    limit: int
    after: str = ""


class UpdateSubscription(Request[PushSubscription], frozen=True, kw_only=True):
    """Replaces a subscription, which goes on where it is. A secret that is left out stays. Refused as above.

    Only if its revision is as `match` demands, else refused with PRECONDITION.
    """

    id: str
    spec: SubscriptionSpec
    match: Match = Match()


class DeleteSubscription(Request[PushSubscription], frozen=True, kw_only=True):
    """Ends a subscription, if its revision is as `match` demands. Refused with NOT_FOUND, PRECONDITION."""

    id: str
    match: Match = Match()


class PauseSubscription(Request[PushSubscription], frozen=True, kw_only=True):
    """Stops deliveries, or with `paused` false goes on where they stopped; `match` and refusals as above."""

    id: str
    paused: bool
    match: Match = Match()


class SinkRequest(NamedTuple):
    """An event as a request to a sink: its headers, content type included, and its body."""

    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


@runtime_checkable
class SinkFactory(Protocol):
    """An adapter's factory that speaks to sinks, too."""

    def event_attributes(self, message: Message) -> Mapping[str, str | int | bool]:
        """Returns the context attributes of a message as an event, `datacontenttype` included."""

    def sink_request(self, message: Message, *, structured: bool) -> SinkRequest:
        """Returns a message as an event in a request, in binary or structured mode."""
