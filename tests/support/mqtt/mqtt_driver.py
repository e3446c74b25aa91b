"""An MQTT client and the gateway behind it, for tests: packets in, packets and effects out, no socket and no clock."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, TypeVar

from msgspec.structs import replace

from adapters.mqtt import FACTORY
from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import Connack, Connect, Packet
from adapters.mqtt.messages.options import Options
from gateway.domain.batch import Batch
from gateway.domain.cursor import Cursor
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    DONE,
    Authenticate,
    Call,
    Close,
    ConnectionInfo,
    Deliveries,
    Effect,
    Outcome,
    Publish,
    Request,
    Subscribe,
)
from gateway.port.reads import Retained, RetainedPage
from gateway.port.sessions import OpenedSession, OpenSession, SaveSession
from gateway.port.single import Single, SingleAdapter
from store.api.message import Message
from store.format.frame import LogOffset

NOW_MS = 1_700_000_000_000
INFO = ConnectionInfo(peer=("127.0.0.1", 40_000), local=("127.0.0.1", 1883), loopback=True)

E = TypeVar("E")
R = TypeVar("R", bound=Request)


def packets_in(data: bytes, version: int) -> Iterator[Packet]:
    """Yields every packet of these bytes, which hold whole packets."""
    at = 0
    while at < len(data):
        frame = read_fixed_header(data, at)
        assert frame is not None
        assert frame.end <= len(data)
        yield decode(frame.first, data[frame.start : frame.end], version)
        at = frame.end


def batch_of(*messages: Message, frame: int = 4096) -> Batch:
    """Returns a frame with one message in each row."""
    count = len(messages)
    return Batch(LogOffset(frame), LogOffset(frame + 1000), list(messages), list(range(count)), [16] * count)


class Driver:
    """One connection. Questions that every connection asks are answered; other effects wait in `effects`."""

    def __init__(
        self, version: int = 5, options: Options | None = None, *, seed: int = 1, now_ms: int = NOW_MS
    ) -> None:
        self.version = version
        self.now_ms = now_ms
        self.options = options or Options()
        self.adapter: Any = FACTORY.connect(INFO, self.options, random=Random(seed))
        self.effects: list[Effect] = []
        self.principal = Outcome(value=Principal(name=""))
        self.opened = Outcome(value=OpenedSession(present=False))
        self.retained: list[Message] = []
        self.begins: Cursor = ()  # where subscriptions begin
        self.saves = True  # answer SaveSession at once
        self.saved: list[SaveSession] = []
        self.asked: OpenSession | None = None  # for which session
        self.short = isinstance(self.adapter, SingleAdapter)

    # ---- in

    def feed(self, data: bytes) -> None:
        """Hands over bytes from the client; a single message takes the short way, as far as it goes without a shell."""
        single = self.single(data) if self.short else None
        if single is not None:
            self.act([self.adapter.publish_of(single)])
        else:
            self.act(self.adapter.receive(data, now_ms=self.now_ms))

    def single(self, data: bytes) -> Single | None:
        """Returns the message of a read that is one plain PUBLISH, as a shell asks for it."""
        [found] = self.adapter.singles([(self.adapter, data)], self.now_ms)
        return found[0] if found else None

    def send(self, *packets: Packet) -> list[Packet]:
        """Sends packets in one read, and returns what the client is sent back."""
        self.feed(b"".join(encode(packet, self.version) for packet in packets))
        return self.out()

    def connect(self, **fields: Any) -> Connack:
        """Sends CONNECT, and returns the CONNACK."""
        fields.setdefault("client_id", "c1")
        (connack,) = self.send(Connect(version=self.version, **fields))
        assert isinstance(connack, Connack)
        return connack

    def complete(self, effect: Publish | Call, outcome: Outcome = DONE) -> list[Packet]:
        """Gives an effect its outcome, and returns what the client is sent."""
        self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))
        return self.out()

    def store(self) -> list[Packet]:
        """Makes every waiting message durable, and returns what the client is sent."""
        for effect in self.take(Publish):
            self.act(self.adapter.completed(effect.token, DONE, now_ms=self.now_ms))
        return self.out()

    def deliver(self, batch: Batch, subs: Sequence[tuple[Any, ...]] | None = None, picks: Any = None) -> int:
        """Offers a batch, to subscription 1 unless others are given, and returns how many messages were taken."""
        picks = range(len(batch.messages)) if picks is None else picks
        subs = [(1,)] * len(picks) if subs is None else subs
        return int(self.adapter.deliver(Deliveries(batch, picks, subs), now_ms=self.now_ms))

    def tick(self, after_ms: int = 0) -> list[Packet]:
        """Lets time pass, and returns what the client is sent."""
        self.now_ms += after_ms
        self.act(self.adapter.tick(now_ms=self.now_ms))
        return self.out()

    def lose(self) -> None:
        """Tells the session that its connection is lost."""
        self.act(self.adapter.lost(now_ms=self.now_ms))

    # ---- out

    def out(self) -> list[Packet]:
        """Returns the packets that the client is sent."""
        return list(packets_in(self.adapter.take_output(), self.version))

    def take(self, kind: type[E]) -> list[E]:
        """Takes the waiting effects of a kind."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def calls(self, kind: type[R]) -> list[Call]:
        """Takes the waiting calls with a kind of request."""
        found = [e for e in self.effects if isinstance(e, Call) and isinstance(e.request, kind)]
        self.effects = [e for e in self.effects if e not in found]
        return found

    def published(self) -> list[Message]:
        """Takes the waiting `Publish` effects, which are never completed, and returns their messages."""
        return [message for effect in self.take(Publish) for message in effect.messages]

    @property
    def closed(self) -> str | None:
        """Returns why the adapter wants the connection closed; None while it does not."""
        return next((effect.reason for effect in self.effects if isinstance(effect, Close)), None)

    def act(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            outcome = self.answer_effect(effect)
            if isinstance(effect, Subscribe) and effect.token is not None:
                self.effects.append(replace(effect, token=None))
                begun = Outcome(value=self.begins)
                self.act(self.adapter.completed(effect.token, begun, now_ms=self.now_ms))
            elif outcome is None:
                self.effects.append(effect)
            else:
                assert isinstance(effect, Call)
                self.act(self.adapter.completed(effect.token, outcome, now_ms=self.now_ms))

    def answer_effect(self, effect: Effect) -> Outcome | None:
        if not isinstance(effect, Call):
            return None
        match effect.request:
            case Authenticate():
                return self.principal
            case OpenSession() as request:
                self.asked = request
                return self.opened
            case Retained():
                return Outcome(value=RetainedPage(messages=self.retained, after=None))
            case SaveSession() as request if self.saves:
                self.saved.append(request)
                return DONE
        return None
