"""A CoAP peer over a byte stream (RFC 8323) for tests, and the gateway behind the connection."""

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec

from adapters.coap.codec.registry import POST, URI_PATH
from adapters.coap.codec.wire import Option, encode_options, read_options
from adapters.coap.messages.settings import CoapOptions
from adapters.coap.stream import CoapConnection, StreamsContext
from adapters.coap.stream.frames import encode_frame, read_head
from adapters.coap.stream.signals import CSM
from gateway.domain.batch import Batch
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    DONE,
    Authenticate,
    Call,
    Close,
    ConnectionInfo,
    Deliveries,
    Outcome,
    Publish,
    Subscribe,
    SubscriptionId,
)
from store.api.message import Message
from store.format.frame import LogOffset

PEER = ("192.0.2.7", 40_000)


class Frame(msgspec.Struct, frozen=True):
    """One frame that was sent."""

    code: int
    token: bytes
    options: dict[int, bytes]
    payload: bytes


def frames(data: bytes) -> Iterator[Frame]:
    at = 0
    while at < len(data):
        head = read_head(data, at)
        assert head is not None
        part = data[at : at + head.end]
        assert len(part) == head.end
        options, end = read_options(part, head.options_at)
        yield Frame(head.code, part[head.token_at : head.options_at], dict(options), part[end + 1 :])
        at += head.end


def request(path: str, code: int = POST, *, token: bytes = b"tk", payload: bytes = b"", options: Any = ()) -> bytes:
    named: list[Option] = [(URI_PATH, level.encode()) for level in path.split("/")]
    rest = encode_options([*named, *options]) + (b"\xff" + payload if payload else b"")
    return encode_frame(code, token, rest)


def csm(*options: Option) -> bytes:
    return encode_frame(CSM, rest=encode_options(options))


class CoapStreamPeer:
    """A connection and its gateway, which stores and answers at once unless told to hold."""

    def __init__(self, *, context: StreamsContext | None = None, opened: bool = True, **settings: Any) -> None:
        self.now_ms = 1_000_000
        self.context = context or StreamsContext(CoapOptions(**settings))
        self.connection = CoapConnection(ConnectionInfo(peer=PEER, local=PEER), self.context, random=Random(7))
        self.stored: list[Message] = []
        self.last: Message | None = None
        self.closed: Close | None = None
        self.held: list[Any] = []
        self.holds = False
        self.subscriptions: list[Any] = []
        self.refusal: Refusal | None = None  # of those who ask to be let in
        self.principal = Principal(name="")  # the principal of the next client
        if opened:
            self.send(csm())

    def send(self, *data: bytes) -> list[Frame]:
        for part in data:
            self.act(self.connection.receive(part, now_ms=self.now_ms))
        return self.sent()

    def sent(self) -> list[Frame]:
        return list(frames(self.connection.take_output()))

    def act(self, effects: Any) -> None:
        for effect in effects:
            if isinstance(effect, Close):
                self.closed = effect
            elif isinstance(effect, Call) and isinstance(effect.request, Authenticate):
                outcome = Outcome(error=self.refusal) if self.refusal else Outcome(value=self.principal)
                self.complete(effect, outcome)
            elif isinstance(effect, Publish | Call):
                self.held.append(effect)
                if not self.holds:
                    self.answer()
            elif isinstance(effect, Subscribe):
                self.subscriptions.append(effect)

    def answer(self) -> list[Frame]:
        held, self.held = self.held, []
        for effect in held:
            if isinstance(effect, Publish):
                self.stored += effect.messages
            self.complete(effect, DONE if isinstance(effect, Publish) else Outcome(value=self.last))
        return self.sent() if self.holds else []

    def complete(self, effect: Any, outcome: Outcome) -> None:
        self.act(self.connection.completed(effect.token, outcome, now_ms=self.now_ms))

    def wait(self, ms: int) -> list[Frame]:
        self.now_ms += ms
        while (due := self.connection.deadline_ms()) is not None and due <= self.now_ms:
            self.act(self.connection.tick(now_ms=self.now_ms))
        return self.sent()

    def deliver(self, *messages: Message) -> int:
        count = len(messages)
        batch = Batch(LogOffset(0), LogOffset(1), list(messages), list(range(count)), [1] * count)
        subs = [(SubscriptionId(self.subscriptions[-1].sub),)] * count
        return self.connection.deliver(Deliveries(batch, range(count), subs), now_ms=self.now_ms)
