"""A CoAP peer for tests: makes datagrams, hands them to an endpoint, reads what comes back."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from adapters.coap import FACTORY
from adapters.coap.codec.registry import ACK, CON, CONTENT_FORMAT, GET, POST, URI_PATH, URI_QUERY
from adapters.coap.codec.wire import Packet, decode, encode, encode_uint
from adapters.coap.messages.settings import CoapOptions
from gateway.domain.batch import Batch
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    DONE,
    Authenticate,
    Call,
    Deliveries,
    Outcome,
    Publish,
    Subscribe,
    SubscriptionId,
    Unsubscribe,
)
from gateway.port.reads import LastValuesPage
from store.api.message import Message
from store.format.frame import LogOffset

PEER = ("192.0.2.7", 40_000)
OTHER = ("192.0.2.8", 40_000)


def request(
    path: str,
    code: int = POST,
    *,
    type: int = CON,
    mid: int = 1,
    token: bytes = b"tk",
    query: tuple[str, ...] = (),
    content_format: int | None = None,
    options: tuple[tuple[int, bytes], ...] = (),
    payload: bytes = b"",
) -> bytes:
    """Returns the datagram of a request."""
    all_options = [(URI_PATH, level.encode()) for level in path.split("/")] if path else []
    all_options += [(URI_QUERY, item.encode()) for item in query]
    if content_format is not None:
        all_options.append((CONTENT_FORMAT, encode_uint(content_format)))
    all_options += options
    packet = Packet(type=type, code=code, mid=mid, token=token, options=tuple(all_options), payload=payload)
    return encode(packet)


def options_of(packet: Packet) -> dict[int, bytes]:
    """Returns the options of a response, each of which may stand in it once."""
    assert len({number for number, _ in packet.options}) == len(packet.options)
    return dict(packet.options)


def dotted(code: int) -> str:
    """Returns a code as the specifications write it, such as 2.05."""
    return f"{code >> 5}.{code & 31:02d}"


@dataclass
class Driver:
    """An endpoint and its gateway: `stored` is what was published, `last` and `listed` what reads are told."""

    settings: dict[str, Any] = field(default_factory=dict)
    now_ms: int = 1_000_000
    stored: list[Message] = field(default_factory=list)
    last: Message | None = None
    listed: list[str] = field(default_factory=list)
    page: LastValuesPage = field(default_factory=lambda: LastValuesPage(messages=(), after=None))
    calls: list[Any] = field(default_factory=list)
    admit: bool = True
    subscriptions: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.socket = FACTORY.bind(CoapOptions(**self.settings), random=Random(7))
        self.endpoint = self.socket.inner
        (asked,) = self.receive()
        assert isinstance(asked, Call)
        assert asked.request == Authenticate(mechanism="anonymous")
        if self.admit:
            assert self.endpoint.completed(asked.token, Outcome(value=Principal(name="")), now_ms=self.now_ms) == []
        self.asked = asked.token

    def receive(self, *datagrams: bytes, peer: tuple[Any, ...] = PEER) -> list[Any]:
        """Hands over the datagrams of one wake, and returns the effects."""
        return list(self.endpoint.receive([(data, peer) for data in datagrams], now_ms=self.now_ms))

    def complete(self, effects: list[Any], outcome: Outcome | None = None) -> None:
        """Carries out what the effects ask for."""
        for effect in effects:
            if isinstance(effect, Publish):
                self.stored += effect.messages
                self.complete(list(self.endpoint.completed(effect.token, outcome or DONE, now_ms=self.now_ms)))
            elif isinstance(effect, Subscribe):
                self.subscriptions[effect.sub] = effect.pattern
            elif isinstance(effect, Unsubscribe):
                del self.subscriptions[effect.sub]
            else:
                assert isinstance(effect, Call)
                self.calls.append(effect.request)
                value = {"LastValue": self.last, "LastValues": self.page}.get(
                    type(effect.request).__name__, self.listed
                )
                told = outcome or Outcome(value=value)
                self.complete(list(self.endpoint.completed(effect.token, told, now_ms=self.now_ms)))

    def sent(self) -> list[Packet]:
        """Returns the messages to be sent now, and checks that each of them is one."""
        return [decode(data) for data, _ in self.endpoint.take_output()]

    def exchange(self, *datagrams: bytes, outcome: Outcome | None = None, peer: tuple[Any, ...] = PEER) -> list[Packet]:
        """Hands over datagrams, carries out what they ask for, and returns the messages that come back."""
        self.complete(self.receive(*datagrams, peer=peer), outcome)
        return self.sent()

    def ask(self, path: str, code: int = POST, *, outcome: Outcome | None = None, **parts: Any) -> Packet:
        """Sends one request, and returns the one message that answers it."""
        (answer,) = self.exchange(request(path, code, **parts), outcome=outcome)
        return answer

    def get(self, path: str, **parts: Any) -> Packet:
        """Sends a GET, and returns its response."""
        return self.ask(path, GET, **parts)

    def tick(self, after_ms: int) -> list[Packet]:
        """Lets time pass, and returns what is sent when its deadline has come."""
        self.now_ms += after_ms
        deadline = self.endpoint.deadline_ms()
        if deadline is not None and deadline <= self.now_ms:
            self.complete(list(self.endpoint.tick(now_ms=self.now_ms)))
        return self.sent()

    def deliver(self, *messages: Message, sub: int = 1) -> list[Packet]:
        """Offers messages to a subscription, and returns what is sent."""
        count = len(messages)
        batch = Batch(LogOffset(0), LogOffset(1), list(messages), list(range(count)), [1] * count)
        subs = [(SubscriptionId(sub),)] * count
        assert self.endpoint.deliver(Deliveries(batch, range(count), subs), now_ms=self.now_ms) == count
        return self.sent()

    def subscribed(self) -> list[str]:
        """Returns the addresses that are subscribed to now."""
        return list(self.subscriptions.values())


def is_ack(packet: Packet, code: str, mid: int = 1, token: bytes = b"tk") -> bool:
    """Returns whether a message is the piggy-backed response to a request."""
    return (packet.type, dotted(packet.code), packet.mid, packet.token) == (ACK, code, mid, token)
