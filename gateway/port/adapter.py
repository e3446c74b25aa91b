"""The adapter port: how a wire protocol, written as a sans-IO state machine, meets the gateway.

Bytes and the clock go in; effects and bytes come out. An adapter never imports asyncio, sockets or time, never
blocks, and answers every input with the effects that follow from it. The shells (`gateway.runtime.connection` for
streams, `gateway.runtime.datagram` for UDP) own sockets, TLS, back-pressure and deadlines, for every protocol.

An acknowledgement follows an input: an adapter that emits `Publish(messages, token)` or `Call(request, token)` is told
the outcome once, by `completed(token, outcome)`, and only then may it acknowledge on the wire. Outcomes of one
connection's `Publish` effects come in the order of the effects; outcomes of calls come when they are ready.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, NewType, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from gateway.domain.batch import Batch
from gateway.domain.cursor import Cursor
from gateway.domain.errors import Refusal
from gateway.domain.forwarding import ForwardingSettings
from gateway.domain.idempotency import IdempotencyKey
from gateway.domain.principal import Principal
from gateway.port.marks import Fence, Marks
from gateway.port.streams import StreamRead
from gateway.port.transaction import SettlingTransaction
from store.api.message import Message
from store.format.frame import Position, QueueOffset

Token = NewType("Token", int)  # chosen by the adapter; unique among its outstanding effects
SubscriptionId = NewType("SubscriptionId", int)  # chosen by the adapter; unique in its connection
ConsumerId = NewType("ConsumerId", int)  # chosen by the adapter; unique in its connection
A = TypeVar("A")  # the answer to a request
Peer: TypeAlias = tuple[Any, ...]  # a socket address: (host, port) or (host, port, flow, scope)


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A frozen, keyword-only value."""


class ConnectionInfo(Value, frozen=True, kw_only=True):
    """A connection as the shell knows it before its first byte."""

    peer: Peer
    local: Peer
    listener: str = ""  # the name of the one it came by
    secure: bool = False  # TLS or DTLS
    alpn: str | None = None
    loopback: bool = False  # both ends on this machine: anonymous clients may be let in
    certificate: Mapping[str, Any] | None = None  # the peer's, verified
    forwarding: ForwardingSettings | None = None  # the peer is a proxy of ours, which says who is behind it
    gateway: str = ""  # the id that this gateway, or its cluster, is known by to other gateways
    message_bytes_max: int = 1 << 62  # the largest body that is stored, whatever the protocol
    now_ms: int = 0  # when it began, by the clock of all later calls
    websocket: bool = False  # the adapter was handed a connection whose first bytes are the handshake of a WebSocket
    others: Collection[str] = ()  # the listeners whose adapters the connection may be handed over to


# ---- effects: the requests of an adapter to the gateway


class Publish(msgspec.Struct, frozen=True, gc=False):
    """Store messages; `completed(token)` follows when they are durable or refused, each or all (`Outcome.refused`)."""

    messages: Sequence[Message]
    token: Token
    once: int = 0  # stored once under this number, however often it is published, and by whichever process; 0: as ever
    who: Principal | None = None  # publishes; None: the connection's last principal
    marks: Marks | None = None  # stored with the messages, in the same frames
    key: IdempotencyKey | None = None  # stored once under this key; refused with `KeyRepeated` when it was before
    fence: Fence | None = None  # stored unless its publisher's name has a later owner; refused with a conflict then
    transaction: SettlingTransaction | None = None  # done as a whole, with its settlements
    copied: bool = False  # some of the messages are routed by other addresses too (`store.api.message.COPIES`)
    mandatory: Sequence[int] = ()  # messages that a named queue has to take: `Outcome.unrouted` says which none took


class Subscribe(Value, frozen=True, kw_only=True):
    """Deliver messages published to matching addresses from now on, or from `start` on.

    `pattern` is a filter of `gateway.domain.filters`, already checked. All subscriptions of a connection share one
    cursor, which a `start` in the past moves back: messages that other subscriptions have had since come to them again.
    A log that `start` does not name is read from its beginning. A message that several of a connection's subscriptions
    match is delivered once, with all their ids. With `where`, a condition of `gateway.domain.sql92`, already checked,
    only messages that pass are delivered. With a token, `completed` brings the beginning in each log, a `Cursor`, in
    `Outcome.value`: at once, ahead of all deliveries.
    """

    sub: SubscriptionId
    pattern: str
    start: Cursor | None = None
    where: str | None = None
    token: Token | None = None
    who: Principal | None = None  # reads; as in `Publish`


class Unsubscribe(Value, frozen=True, kw_only=True):
    """End a subscription."""

    sub: SubscriptionId


class Settled(Value, frozen=True, kw_only=True):
    """Progress of the deliveries taken: `oldest` has the oldest one still unacknowledged, of each log that has one.

    Emit it when the adapter can take more after having taken less than offered, and, for a durable session, when
    `oldest` has moved: earlier messages will not be delivered again, even after a crash. Nor will any of a log that it
    leaves out.
    """

    oldest: Cursor = ()


class Disposition(Value, frozen=True, kw_only=True):
    """The outcome of leased messages of one consumer: `outcome` is "ack", "requeue" or "reject"."""

    offsets: Sequence[QueueOffset]
    outcome: str


class Consume(Value, frozen=True, kw_only=True):
    """Lease messages of a named queue to this connection as they come; `completed(token)` says whether it may.

    With `settle_on_delivery` a message is settled as soon as `deliver` has taken it. `credit` is how many messages it
    can take until it is `Ready` again, None where that is not known: no more are leased for it. Consumers of a lower
    `priority` get something only while those of a higher one have no room. Consumers of a connection with the same
    number in `shares`, unless that is 0, have one credit together.
    """

    consumer: ConsumerId
    queue: str
    token: Token
    exclusive: bool = False
    settle_on_delivery: bool = False
    credit: int | None = None
    shares: int = 0
    priority: int = 0
    stream: StreamRead | None = None  # the position and filters in a stream; None: not given
    limited: bool = False  # the client has said how much it can take


class SettleLeased(Value, frozen=True, kw_only=True):
    """Settle leased messages of one queue. With a token, `completed` follows when that is durable.

    `number` is the queue's as `Leased` said it: nothing happens if another queue has got the name meanwhile.
    0: whichever has it.
    """

    queue: str
    dispositions: Sequence[Disposition]
    token: Token | None = None
    number: int = 0


class Ready(Value, frozen=True, kw_only=True):
    """A consumer's readiness for deliveries, after it took fewer than offered, or all that it had credit for.

    `credit` is how many from now on, in place of the credit before; None: as many as before.
    """

    consumer: ConsumerId
    credit: int | None = None


class Cancel(Value, frozen=True, kw_only=True):
    """End a consumer. Its messages stay leased to this connection until settled or the connection ends."""

    consumer: ConsumerId


class Call(Value, frozen=True, kw_only=True):
    """Ask the gateway something; `completed(token)` brings the answer in `Outcome.value` or `Outcome.error`."""

    request: "Request[Any]"
    token: Token
    who: Principal | None = None  # asks; as in `Publish`


class GiveUp(Value, frozen=True, kw_only=True):
    """The answer to a `Call` is not wanted any more: it is not waited for, and nothing is leased for it."""

    token: Token


class Close(Value, frozen=True, kw_only=True):
    """Write the rest of `take_output`, then close. `reason` is for the log; "" when all is well."""

    reason: str = ""
    again: bool = False  # for something that the client is likely to send again


class HandOver(Value, frozen=True, kw_only=True):
    """Hands the connection over to the adapter of another listener, which reads from `data` on.

    Nothing of this adapter's is in flight, and nothing follows: it is not called any more.
    """

    listener: str  # one of `ConnectionInfo.others`
    data: bytes
    websocket: bool = False  # `data` begins with the handshake of a WebSocket, all of it


Effect: TypeAlias = (
    Publish
    | Subscribe
    | Unsubscribe
    | Settled
    | Consume
    | SettleLeased
    | Ready
    | Cancel
    | Call
    | GiveUp
    | Close
    | HandOver
)


# ---- requests, carried by a Call. Each subject has a file of them; `gateway.runtime.requests` has the table of all


class Request(Value, Generic[A], frozen=True, kw_only=True):
    """A request, whose class names the type of its answer (`Outcome.value`)."""


class Challenge(Value, frozen=True, kw_only=True):
    """A mechanism's challenge to the client; the client has to answer it."""

    data: bytes
    exchange: Any  # returned with the answer, and opaque to the gateway


class Authenticate(Request[Principal | Challenge], frozen=True, kw_only=True):
    """Asks for the principal of credentials. `Challenge` where a mechanism has another step.

    The authenticator knows the peer's certificate: "anonymous" is a client that presents nothing besides. Refused with
    UNAUTHENTICATED, or with OVERLOAD or QUOTA where too many authentications are asked for.
    """

    mechanism: str  # "anonymous", "password", "bearer", "external", or by SASL's name: "SCRAM-SHA-256"
    username: str = ""
    password: bytes = b""  # or a token
    client_id: str = ""
    data: bytes = b""  # the client's part of a SASL mechanism
    exchange: Any = None  # of the `Challenge` that this answers
    address: str = ""  # of the client behind a proxy of ours; "": at the other end of the connection
    sole: bool = False  # no other client comes by this connection from behind it


class CancelTimer(Request[bool], frozen=True, kw_only=True):
    """Forget a message that is to be delivered later, by its ticket (`gateway.port.tickets.timer_ticket`).

    Answers whether it was still pending. Refused with NOT_FOUND for a ticket that is not this principal's.
    """

    timer: str


# ---- answers and deliveries, from the gateway to an adapter


class Outcome(Value, frozen=True, kw_only=True):
    """The outcome of an effect. `error` refuses the whole; `refused` refuses messages of a Publish by their index."""

    value: Any = None
    error: Refusal | None = None
    refused: Mapping[int, Refusal] = msgspec.field(default_factory=dict)
    first: Position | None = None  # of a Publish stored in one log: its first message's; the others follow row by row
    positions: Mapping[int, Sequence[Position]] = msgspec.field(default_factory=dict)  # of one stored in several logs
    overflowed: Sequence[int] = ()  # messages of a Publish that are stored, and that a full named queue has not taken
    unrouted: Sequence[int] = ()  # mandatory messages of a Publish for which there was no named queue, refused or not

    def stored(self, count: int) -> dict[int, Sequence[Position]]:
        """Returns the positions of the messages of a Publish of `count`, by their index, without the refused ones.

        A message that is in several logs, for queues there, has its own position first. Empty where all were refused.
        """
        if self.first is None:
            return dict(self.positions)
        frame, row = self.first
        kept = [index for index in range(count) if index not in self.refused]
        return {index: (Position(frame, row + n),) for n, index in enumerate(kept)}


DONE = Outcome()


class Deliveries(msgspec.Struct, frozen=True, gc=False):
    """Messages for the subscriptions of one connection, all of one log, in its order.

    `picks` are indexes into `batch.messages`, ascending; `subs[n]` are the subscriptions that `picks[n]` matched.
    A batch is shared by all its subscribers: an encoding can be kept in `batch.memo` for all.
    """

    batch: Batch
    picks: Sequence[int]
    subs: Sequence[tuple[SubscriptionId, ...]]


class Leased(msgspec.Struct, frozen=True, gc=False):
    """Messages of a named queue, leased to one consumer. The three sequences are parallel."""

    consumer: ConsumerId
    messages: Sequence[Message]
    offsets: Sequence[QueueOffset]
    deliveries: Sequence[int]  # how often it has been delivered before; 0: never for sure
    number: int = 0  # of the queue: it tells apart two that had one name after the other


class ConsumerCancelled(msgspec.Struct, frozen=True, gc=False):
    """Offered to `deliver` in place of messages: the consumer has ended, with its queue or its right. Takes nothing."""

    consumer: ConsumerId
    denied: bool = False  # the queue is there, and the right to read it was revoked


Deliverable: TypeAlias = Deliveries | Leased | ConsumerCancelled


class Adapter(Protocol):
    """One stream connection of one protocol. An adapter that derives from it inherits its concrete methods.

    That is enough for a protocol without sessions and deadlines, whose connections hold nothing besides memory.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def wants_data(self) -> bool:
        """Returns False while the shell should not read."""

    @abstractmethod
    def receive(self, data: bytes | memoryview, *, now_ms: int) -> Sequence[Effect]:
        """Takes bytes from the peer, cut anywhere; never raises: answers, or closes.

        No bytes mean that the peer's silence does not count: it is not read from, or the clock was set.
        """

    @abstractmethod
    def completed(self, token: Token, outcome: Outcome, *, now_ms: int) -> Sequence[Effect]:
        """Takes the outcome of one of this adapter's effects."""

    @abstractmethod
    def deliver(self, deliveries: Deliverable, *, now_ms: int) -> int:
        """Returns how many deliveries it took, counted from the first; the rest is offered again after `Settled`."""

    def tick(self, *, now_ms: int) -> Sequence[Effect]:
        """Runs the timers due: `deadline_ms` has come."""
        return ()

    def deadline_ms(self) -> int | None:
        """Returns when to call `tick` next, by the same clock as `now_ms`; None: not at all."""
        return None

    def superseded(self, *, now_ms: int) -> Sequence[Effect]:
        """Ends: another connection has taken over the session that this one opened."""
        return ()

    @abstractmethod
    def shutdown(self, *, now_ms: int, dismissed: bool = False) -> Sequence[Effect]:
        """Says good-bye in the protocol's words and emits `Close`. `dismissed`: the user was removed, or changed."""

    def lost(self, *, now_ms: int) -> Sequence[Effect]:
        """Ends, as the connection is gone: only `Publish` (a will), `Settled` and `Call` may still follow."""
        return ()

    @abstractmethod
    def take_output(self) -> bytes:
        """Returns the bytes to write to the peer now."""


@runtime_checkable
class Responder(Protocol):
    """An adapter that holds long responses until its peer takes them; all of a process share one limit on bytes."""

    @property
    def unread_bytes(self) -> int:
        """Returns the bytes held of responses that the peer has not taken; event streams have bounds of their own."""


@runtime_checkable
class TimedAdapter(Protocol):
    """An adapter, of streams or of datagrams, that measures how long something has lasted, or is to last.

    It does so by the `now_ms` of its calls, which is the wall clock, and may be set.
    """

    def clock_set(self, by_ms: int) -> None:
        """Moves the times that it has noted: the clock was set ahead by `by_ms`, or back where that is negative."""


class Listener(Value, frozen=True, kw_only=True):
    """One port an adapter listens on by default, before the operator's port offset."""

    name: str  # "mqtt"; unique over all adapters: the configuration's section is `listeners.{name}`
    port: int
    transport: str  # "tcp"; or "udp", where the factory is one of `gateway.port.datagram`, too
    tls_port: int | None = None  # its twin under TLS
    alpn: Sequence[str] = ()
    summary: str = ""  # for the table that `headgate serve` prints
    dtls: bool = False  # of "udp": over DTLS
    enabled: bool = True  # unless the operator says otherwise


class AdapterFactory(Protocol):
    """The object that an entry point of the group `headgate.adapters` names: one for each protocol."""

    listeners: Sequence[Listener]
    options: type[msgspec.Struct]  # its typed configuration section, every field with a default

    def connect(self, info: ConnectionInfo, options: Any, *, random: "Random") -> Adapter:
        """Returns the state machine of a new stream connection. `random` is its only source of chance."""


class Random(Protocol):
    """Chance, passed in: `random.SystemRandom` in production, a seeded one in tests."""

    def getrandbits(self, k: int, /) -> int:
        """Returns a number of `k` random bits."""
