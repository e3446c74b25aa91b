"""The bridge port: how a wire protocol reads from an upstream broker, and forwards to it.

It is the adapter port turned round: we connect, and the peer publishes. An adapter whose factory is a `BridgeFactory`
can do it, and is found by the schemes of the URLs that it speaks. Messages are taken in batches (`take`), and
acknowledged upstream only when the gateway has said that the batch is durable (`settled`): one batch is in flight at a
time, and all messages that come meanwhile are the next one.

Where a library keeps the connection, as for AMQP 0-9-1, an adapter gives a `BrokerCodec` in place of a state machine:
it reads the properties of a broker's message, and makes those of a message that is forwarded.

`BrokerPublisher` and `EventCodec` are for the sinks of subscriptions: messages as events, whatever they were before.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from gateway.domain.errors import ProtocolError, Refusal
from store.api.message import Message

LOOPED: Final = "looped"  # why a message is skipped that has been here before


class Scheme(NamedTuple):
    """The meaning of a URL's scheme."""

    port: int  # where none is given
    secure: bool = False  # TLS
    subprotocol: str = ""  # over WebSocket, by this name


class UpstreamFilter(NamedTuple):
    """A filter to be subscribed to upstream."""

    pattern: str
    qos: int


class Destination(NamedTuple):
    """The address that a message of an upstream topic goes to, and the device that it speaks for."""

    address: str
    device: str


DestinationOf: TypeAlias = Callable[[str], Destination | None]  # None: nothing that is asked for has this topic


class ClientTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of our end of a connection to a broker."""

    client_id: str
    username: str | None
    password: str | None
    version: str  # as `gateway.bridges.shared.settings.BridgeConfig.version`
    clean: bool
    session_expiry_s: int
    keep_alive_s: int  # 0: none
    answer_timeout_ms: int  # to be let in, and to be subscribed
    receive_maximum: int  # messages from the broker that are not acknowledged
    gateway: str = ""  # the id that this gateway, or its cluster, is known by to others; "": unknown to others
    older: str = 'write version = "3.1.1"'  # the advice for a broker that does not know MQTT 5.0


class UpstreamSettings(ClientTerms, frozen=True, kw_only=True):
    """The settings of a connection to an upstream that is read."""

    bridge: str  # the bridge's name, which its messages carry
    pending_bytes_max: int  # of messages that are not durable; beyond, nothing is read
    message_bytes_max: int  # a larger one is skipped, and refused
    wanted: Sequence[UpstreamFilter]
    destination_of: DestinationOf


class Upstream(Protocol):
    """One upstream, over as many connections as it takes. Its methods never block; times are ms of one clock."""

    @property
    def ready(self) -> bool:
        """Returns whether the upstream has accepted the connection and the subscriptions."""

    @property
    def full(self) -> bool:
        """Returns whether reading should stop until `settled`."""

    @property
    def unacknowledged(self) -> int:
        """Messages that the upstream still has, as they are not durable here."""

    @property
    def lowered(self) -> Mapping[str, int]:
        """Returns the filters that the upstream grants at a lower QoS than was asked for, and that QoS."""

    @property
    def passed_over(self) -> Mapping[str, int]:
        """Returns by cause the number of messages acknowledged without being stored: unstorable, or here already."""

    def connected(self, now_ms: int) -> None:
        """Starts the protocol on a new connection."""

    def receive(self, data: bytes, now_ms: int) -> None:
        """Takes bytes. Raises `ProtocolError`: the connection is of no use any more."""

    def tick(self, now_ms: int, *, reading: bool) -> None:
        """Notes the time; `reading`: the peer's input is read. Raises `ProtocolError` as `receive` does."""

    def deadline_ms(self) -> int | None:
        """Returns the latest time to call `tick`."""

    def take(self) -> Sequence[Message] | None:
        """Returns the messages received since the last call; None: there are none, or the last are not settled yet.

        The sequence may be empty when there are only messages to refuse: it has to be settled all the same.
        """

    def settled(self, refused: Mapping[int, Refusal], left: Collection[int] = ()) -> None:
        """Notes that the taken messages are durable, except those `refused` for good and those `left`, by their index.

        Some are left where the connection ends before all are stored: they are not acknowledged, and come again.
        """

    def leave(self) -> None:
        """Disconnects in the protocol's own way."""

    def lost(self) -> None:
        """Notes that the connection is gone. Messages taken and not settled yet will come again."""

    def take_output(self) -> bytes:
        """Returns bytes to be sent since the last call."""


@runtime_checkable
class BridgeFactory(Protocol):
    """An adapter's factory that speaks to upstream brokers too."""

    @property
    def schemes(self) -> Mapping[str, Scheme]:
        """Returns the schemes of its URLs."""

    def upstream(self, terms: UpstreamSettings, options: Any) -> Upstream:
        """Returns an upstream that is not connected yet; `options` are the adapter's own, read and checked."""


class PublisherTerms(ClientTerms, frozen=True, kw_only=True):
    """The settings of a connection to a broker that events are published to."""

    qos: int
    retain: bool
    structured: bool  # events as JSON; over MQTT 3.1.1 they always are
    expiry_s: int | None  # of each message; None: until the event's own time is over
    properties: Sequence[tuple[str, str]]  # of each message, besides the event's


class BrokerAnswer(NamedTuple):
    """The answer of a broker to a message; `error` is "" where it has taken it."""

    number: int
    error: str = ""
    of_message: bool = False  # it is the message's own fault: another one may well be taken


class BrokerPublisher(Protocol):
    """One connection to a broker that events are published to. Its methods never block; times are ms of one clock."""

    @property
    def ready(self) -> bool:
        """Returns whether the broker has accepted the connection."""

    @property
    def in_flight_max(self) -> int:
        """Returns how many messages the broker takes before it has answered one of them."""

    def connected(self, now_ms: int) -> None:
        """Starts the protocol on the connection."""

    def receive(self, data: bytes, now_ms: int) -> None:
        """Takes bytes. Raises `ProtocolError`: the connection is of no use any more."""

    def tick(self, now_ms: int, *, reading: bool) -> None:
        """Notes the time; `reading`: the peer's input is read. Raises `ProtocolError` as `receive` does."""

    def deadline_ms(self) -> int | None:
        """Returns the latest time to call `tick`."""

    def publish(self, topic: str, message: Message, now_ms: int) -> int | None:
        """Publishes a message as an event; returns the number of its answer, 0 for QoS 0, which has none.

        None: nothing is sent, as the message has been at this broker before. Raises `Refusal` for a message that the
        broker's protocol cannot carry.
        """

    def answers(self) -> Sequence[BrokerAnswer]:
        """Returns the answers that have come since the last call."""

    def message_at_fault(self, error: ProtocolError) -> int | None:
        """Returns the number of the message for which the broker has ended the connection; None where it is unknown."""

    def leave(self) -> None:
        """Disconnects in the protocol's own way."""

    def take_output(self) -> bytes:
        """Returns the bytes to be sent since the last call."""


@runtime_checkable
class PublisherFactory(Protocol):
    """An adapter's factory that publishes events to brokers, too."""

    @property
    def schemes(self) -> Mapping[str, Scheme]:
        """Returns the schemes of its URLs."""

    def publisher(self, terms: PublisherTerms) -> BrokerPublisher:
        """Returns a publisher that is not connected yet."""


class BrokerCodec(Protocol):
    """The mapping between a broker's messages and ours, for one bridge."""

    def read(self, properties: bytes, body: bytes, place: Destination, *, upstream: str, now_ms: int) -> Message | None:
        """Returns a message that was read; None: it has been here before.

        `upstream` is the id of the gateway that it was read from, "" for another broker. Raises `Refusal` for
        properties that can never be stored.
        """

    def forwarded(
        self, message: Message, *, upstream: str, fallback_id: str, header_bytes_max: int, now_ms: int
    ) -> "Forwarded | None":
        """Returns the content of a message to be forwarded; None: it has been at the upstream before.

        `fallback_id` identifies the message where its publisher did not. Properties beyond `header_bytes_max` are left
        out.
        """


class Forwarded(NamedTuple):
    """The content of a message as the upstream gets it."""

    id: str
    properties: bytes
    body: bytes


class EventCodec(Protocol):
    """Events as messages of a broker, over connections that a library keeps."""

    def content(
        self, message: Message, *, structured: bool, upstream: str, header_bytes_max: int, now_ms: int
    ) -> Forwarded | None:
        """Returns the content of a message as an event; None: it has been at the upstream before.

        Raises `Refusal` (TOO_LARGE) for attributes that do not fit into `header_bytes_max`.
        """


@runtime_checkable
class BrokerFactory(Protocol):
    """An adapter's factory whose protocol brokers are bridged by, over connections that a library keeps."""

    @property
    def broker_schemes(self) -> Mapping[str, Scheme]:
        """Returns the schemes of its URLs."""

    def broker_codec(self, bridge: str, gateway: str) -> BrokerCodec:
        """Returns the mapping for a bridge of that name; `gateway` is our own id, "" for none."""

    def event_codec(self, gateway: str) -> EventCodec:
        """Returns the form of events for brokers; `gateway` is our own id, "" for none."""
