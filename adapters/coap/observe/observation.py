"""One observer's entry, and the entries by endpoint and by observed resource."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from adapters.coap.codec.registry import CONTENT, CONTENT_FORMAT, MAX_AGE, OBSERVE
from adapters.coap.codec.wire import decode, encode, encode_uint, read_uint
from adapters.coap.exchanges.answers import Answer
from adapters.coap.exchanges.exchanges import Exchange
from adapters.coap.exchanges.message_ids import Numbering
from adapters.coap.reading.reads import Observable, Read
from gateway.port.adapter import Peer, SubscriptionId, Token
from store.api.message import Message

RECENT_COUNT_MAX = 64  # notifications of one endpoint that a Reset is still matched with
SEQUENCE_MASK = 0xFF_FFFF
WAITING_COUNT_MAX = 64  # addresses whose newest message waits for one observer


def next_sequence(last: int, now_ms: int) -> int:
    """Returns the number of the next notification; its lower 24 bits are sent (RFC 7641, 4.4).

    It is the clock in milliseconds, so it rises over restarts and where another process takes over, or one above `last`
    where that is more: at most 2**23 notifications may be sent in 128 s, which the acknowledgements do not allow.
    """
    return max(now_ms, last + 1)


@dataclass(slots=True, eq=False)
class Observation:
    """One observer: an endpoint and the token of its request."""

    read: Read
    token: bytes
    sub: SubscriptionId
    registering: Exchange | None  # the request that is not answered yet
    confirmed_ms: int  # when the endpoint last sent something
    sequence: int = 0  # of the last notification, also of the observation before it, not cut to 24 bits
    first: tuple[Exchange | None, bytes] = (None, b"")  # the request, and its response where it was an acknowledgement
    etag: bytes = b""  # of the last notification
    expires_at_ms: int | None = None  # the message of the last notification, or the one that is to be the next
    content_format: tuple[bytes | None] | None = None  # of the first 2.05 response; None: there was none yet
    outstanding: int | None = None  # the Message ID of the Confirmable notification in flight
    unconfirmed_count: int = 0  # Non-confirmable notifications since the last acknowledgement
    # The messages that came while no notification could be sent, <= WAITING_COUNT_MAX: the newest by its address, or,
    # where each is wanted, all by their ids.
    waiting: dict[str, Message] = field(default_factory=dict)
    # By address, those of a filter that were sent in Non-confirmable notifications since the last acknowledgement.
    unconfirmed: dict[str, Message] = field(default_factory=dict)

    @property
    def peer(self) -> Peer:
        """The observer's endpoint."""
        return self.read.peer

    @property
    def many(self) -> bool:
        """Returns whether this observes a filter."""
        return self.read.observable is not None and self.read.observable.many

    def take_waiting(self) -> list[Message]:
        """Returns the messages that waited and are sent next, the oldest first."""
        if self.read.each:
            return [self.waiting.pop(next(iter(self.waiting)))] if self.waiting else []
        waiting, self.waiting = self.waiting, {}
        return list(waiting.values())

    def wait(self, message: Message) -> bool:
        """Lets a message wait, in the place of an older one unless each is wanted; returns False where too many do."""
        key = self._key(message)
        self.waiting.pop(key, None)
        self.waiting[key] = message
        return len(self.waiting) <= WAITING_COUNT_MAX

    def put_back(self, messages: Iterable[Message]) -> None:
        """Lets messages wait that could not be sent, before those that came after them."""
        unsent = {self._key(message): message for message in messages if not self._is_unconfirmed(message)}
        self.waiting = unsent | self.waiting

    def take_unconfirmed(self) -> list[Message]:
        """Returns the messages of a Confirmable notification: those that waited, and what it repeats of a filter."""
        messages = self.take_waiting()
        return self.repeating(messages) if self.many else messages

    def repeating(self, messages: Iterable[Message]) -> list[Message]:
        """Returns what is not acknowledged of a filter, and these messages, the newest of each address, at the end."""
        for message in messages:
            self.unconfirmed.pop(message.address, None)
            self.unconfirmed[message.address] = message
        return list(self.unconfirmed.values())

    def renumbered(self, datagram: bytes, now_ms: int, wall_ms: int) -> bytes:
        """Returns a notification that is sent again, with a number and a Max-Age that are right now (RFC 7641, 4.4)."""
        packet = decode(datagram)
        options = dict(packet.options)
        self.sequence = next_sequence(self.sequence, now_ms)
        options[OBSERVE] = encode_uint(self.sequence & SEQUENCE_MASK)
        if self.expires_at_ms is not None:
            left_s = max(self.expires_at_ms - wall_ms, 0) // 1000
            options[MAX_AGE] = encode_uint(min(left_s, read_uint(options[MAX_AGE])))
        return encode(msgspec.structs.replace(packet, options=tuple(options.items())))

    def _is_unconfirmed(self, message: Message) -> bool:
        return self.unconfirmed.get(message.address) is message

    def _key(self, message: Message) -> str:
        return message.id if self.read.each else message.address

    def keeps_format(self, answer: Answer) -> bool:
        """Returns whether a response has the Content-Format of the first one, as it must (RFC 7641, 4.2)."""
        if answer.code != CONTENT:
            return True
        content_format = (dict(answer.options).get(CONTENT_FORMAT),)
        if self.content_format is None:
            self.content_format = content_format
        return self.content_format == content_format


@dataclass(slots=True, eq=False)
class Observed:
    """One observed address or filter and its observers, in the order of their registration."""

    sub: SubscriptionId
    observable: Observable
    observations: dict[tuple[Peer, bytes], Observation] = field(default_factory=dict)  # by endpoint and token
    version: int = 0  # counts the messages delivered
    check: tuple[Token, int] | None = None  # the read in flight, and the version at its start


@dataclass(slots=True, eq=False)
class Watcher:
    """One endpoint that observes. One Confirmable message to it is in flight at a time (NSTART; RFC 7641, 4.5.1)."""

    numbering: Numbering
    observations: dict[bytes, Observation] = field(default_factory=dict)  # by token
    recent: dict[int, Observation] = field(default_factory=dict)  # by Message ID, the oldest first
    in_flight: int | None = None  # the Message ID of that message
    carried: Observation | None = None  # the observation that it belongs to, or belonged to
    # The observations that wait until it is acknowledged, by token, and the error responses of those that have ended.
    queue: dict[bytes, tuple[Observation, Answer | None]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Returns whether the endpoint observes nothing and nothing is on its way to it."""
        return not self.observations and not self.queue and self.in_flight is None

    @property
    def finals_count(self) -> int:
        """Returns how many error responses of observations that have ended wait."""
        return sum(answer is not None for _, answer in self.queue.values())

    def fly(self, mid: int, observation: Observation) -> None:
        """Notes that a Confirmable message is in flight."""
        self.in_flight, self.carried = mid, observation

    def release(self, mid: int | None) -> None:
        """Notes that a message is in flight no longer."""
        if self.in_flight == mid:
            self.in_flight = self.carried = None

    def sent(self, mid: int) -> Observation | None:
        """Returns the observation that a notification belongs to, unless it has ended."""
        found = self.carried if mid == self.in_flight else self.recent.get(mid)
        return found if found is not None and self.observations.get(found.token) is found else None

    def remember(self, mid: int, observation: Observation) -> None:
        """Notes the Message ID of a new notification."""
        self.recent.pop(mid, None)
        if len(self.recent) >= RECENT_COUNT_MAX:
            del self.recent[next(iter(self.recent))]
        self.recent[mid] = observation
