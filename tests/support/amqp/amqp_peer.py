"""A client for AMQP tests: it speaks pamqp's codec to an `AmqpConnection`, and plays the gateway to it."""

import random
from collections.abc import Sequence
from typing import Any

from pamqp import commands, frame, header, heartbeat
from pamqp.body import ContentBody

from adapters.amqp import AmqpConnection, AmqpFactory, AmqpOptions
from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Authenticate, Call, ConnectionInfo, Effect, Leased, Outcome, Publish
from store.api.message import Message

NOW_MS = 1_700_000_000_000
HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {
    "authentication_failure_close": True,
    "connection.blocked": True,
    "consumer_cancel_notify": True,
    "publisher_confirms": True,
}
PROPERTIES = {"capabilities": CAPABILITIES}  # of the client


def encoded(channel: int, *frames: Any) -> bytes:
    return b"".join(frame.marshal(each, channel) for each in frames)


def publish(channel: int, exchange: str, key: str, body: bytes, *, mandatory: bool = False, **properties: Any) -> bytes:
    """Returns the frames of one published message, its body in frames of at most 4,000 bytes."""
    content = header.ContentHeader(body_size=len(body), properties=commands.Basic.Properties(**properties))
    chunks = [ContentBody(body[at : at + 4_000]) for at in range(0, len(body), 4_000)]
    method = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    return encoded(channel, method, content, *chunks)


class Peer:
    """A connection under test, with its clock."""

    def __init__(
        self, *, factory: AmqpFactory | None = None, gateway_bytes_max: int = 16 << 20, **options: Any
    ) -> None:
        info = ConnectionInfo(
            peer=("127.0.0.1", 1), local=("127.0.0.1", 5672), loopback=True, message_bytes_max=gateway_bytes_max
        )
        factory = factory or AmqpFactory()
        self.conn: AmqpConnection = factory.connect(info, AmqpOptions(**options), random=random.Random(1))
        self.now_ms = NOW_MS
        self.effects: list[Effect] = []
        self.rest = b""

    def send(self, *frames: Any, channel: int = 0) -> Sequence[Effect]:
        return self.feed(encoded(channel, *frames))

    def feed(self, data: bytes) -> Sequence[Effect]:
        effects = self.conn.receive(data, now_ms=self.now_ms)
        self.effects += effects
        return effects

    def publish(self, *args: Any, channel: int = 1, **properties: Any) -> Sequence[Effect]:
        return self.feed(publish(channel, *args, **properties))

    def complete(self, effect: Any, value: Any = None, **outcome: Any) -> Sequence[Effect]:
        effects = self.conn.completed(effect.token, Outcome(value=value, **outcome), now_ms=self.now_ms)
        self.effects += effects
        return effects

    def refuse(self, effect: Any, refusal: Refusal) -> Sequence[Effect]:
        return self.complete(effect, error=refusal)

    def deliver(self, consumer: int, messages: Sequence[Message], *, first: int = 0, before: int = 0) -> int:
        offsets = list(range(first, first + len(messages)))
        leased = Leased(consumer, messages, offsets, [before] * len(messages))
        return self.conn.deliver(leased, now_ms=self.now_ms)

    def tick(self, after_ms: int) -> Sequence[Effect]:
        self.now_ms += after_ms
        effects = self.conn.tick(now_ms=self.now_ms)
        self.effects += effects
        return effects

    def frames(self) -> list[tuple[int, Any]]:
        """Returns what the gateway has sent since the last time, as (channel, frame)."""
        data, found = self.rest + self.conn.take_output(), []
        while data:
            if data[:1] == b"\x08":
                used, number, value = 8, 0, heartbeat.Heartbeat()
            else:
                used, number, value = frame.unmarshal(data)
            found.append((number, value))
            data = data[used:]
        return found

    def methods(self) -> list[Any]:
        return [value for _, value in self.frames()]

    def one(self, kind: type) -> Any:
        """Returns the only frame that has been sent, which must be of this type."""
        found = self.methods()
        assert [type(value) for value in found] == [kind], found
        return found[0]

    # ---- what most tests begin with

    def start(self, *, capabilities: dict[str, bool] = CAPABILITIES) -> Any:
        """Begins the handshake, and returns the gateway's Connection.Start."""
        self.feed(HEADER)
        self.one(commands.Connection.Start)
        (asked,) = self.send(
            commands.Connection.StartOk(
                client_properties={"capabilities": capabilities}, response="\0guest\0guest", locale="en_US"
            )
        )
        assert isinstance(asked, Call)
        assert isinstance(asked.request, Authenticate)
        return asked

    def open(
        self,
        *,
        channels: int = 1,
        frame_max: int = 4096,
        heartbeat_s: int = 0,
        principal: Principal | None = None,
        capabilities: dict[str, bool] = CAPABILITIES,
    ) -> "Peer":
        """Returns an open connection with open channels."""
        self.complete(self.start(capabilities=capabilities), principal or Principal(name="guest"))
        self.one(commands.Connection.Tune)
        self.send(commands.Connection.TuneOk(channel_max=100, frame_max=frame_max, heartbeat=heartbeat_s))
        self.send(commands.Connection.Open())
        self.one(commands.Connection.OpenOk)
        for number in range(1, channels + 1):
            self.send(commands.Channel.Open(), channel=number)
            self.one(commands.Channel.OpenOk)
        self.effects.clear()
        return self

    def confirming(self, channel: int = 1) -> "Peer":
        self.send(commands.Confirm.Select(), channel=channel)
        self.one(commands.Confirm.SelectOk)
        return self

    def consume(self, queue: str = "q", *, channel: int = 1, tag: str = "c", **arguments: Any) -> int:
        """Begins a consumer, and returns its id."""
        (effect,) = self.send(commands.Basic.Consume(queue=queue, consumer_tag=tag, **arguments), channel=channel)
        self.complete(effect)
        self.one(commands.Basic.ConsumeOk)
        return effect.consumer

    def published(self) -> list[Message]:
        """Returns all messages that have been published so far."""
        return [message for effect in self.effects if isinstance(effect, Publish) for message in effect.messages]
