"""Connections to brokers that are sinks: one for all attempts, to checked addresses, and again when it has ended."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from adapters.mqtt import FACTORY
from adapters.mqtt.codec import decode, encode, read_fixed_header
from adapters.mqtt.codec.packets import Connack, Connect, Disconnect, Packet, Puback, Publish
from gateway.bridges.sinks.kinds import sink_kinds
from gateway.port.push import ProtocolSettings, SubscriptionSpec
from gateway.push.guard import SinkGuard
from gateway.push.outbox import Attempt, Failure
from gateway.push.sender import EventSender
from gateway.push.settings import SubscriptionsConfig
from gateway.push.spec import SubscriptionRecord
from gateway.push.trust import SinkTrust
from store.api.message import Message
from store.base.clock import now_ms
from store.base.streams import Backoff
from store.format.frame import LogOffset, Position

pytestmark = pytest.mark.anyio

Say = Callable[[Packet], Awaitable[None]]


class Broker:
    """A broker that answers `answer(packet, say)`."""

    def __init__(self, answer: Callable[[Packet, Say], Awaitable[Any]]) -> None:
        self._answer = answer
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.append(writer)

        async def say(packet: Packet) -> None:
            writer.write(encode(packet, 5))

        data = b""
        while more := await reader.read(65_536):
            data += more
            while (frame := read_fixed_header(data, 0, minimal=True)) is not None and frame.end <= len(data):
                await self._answer(decode(frame.first, data[frame.start : frame.end], 5), say)
                data = data[frame.end :]
        writer.close()


async def taking(packet: Packet, say: Say) -> None:
    """Answers as a broker that takes everything."""
    if isinstance(packet, Connect):
        await say(Connack())
    elif isinstance(packet, Publish) and packet.packet_id is not None:
        await say(Puback(packet_id=packet.packet_id))


@asynccontextmanager
async def running(answer: Callable[[Packet, Say], Awaitable[Any]] = taking) -> AsyncIterator[Broker]:
    broker = Broker(answer)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    yield broker
    for writer in broker.writers:
        writer.close()
    server.close()


class Tools:
    """The parts of a process that a sender needs."""

    def __init__(self, *allowed: str) -> None:
        self.guard = SinkGuard(SubscriptionsConfig(private_sinks=allowed))
        self.trust, self.now_ms = SinkTrust(None), now_ms


@asynccontextmanager
async def sender_of(port: int, *allowed: str, host: str = "127.0.0.1", **settings: Any) -> AsyncIterator[EventSender]:
    spec = SubscriptionSpec(
        sink=f"mqtt://{host}:{port}",
        protocol="MQTT5",
        protocolsettings=ProtocolSettings(topicname="up/{address}", **settings),
    )
    kind = sink_kinds([FACTORY], "")["MQTT5"]
    kind.check(spec)
    sender = kind.sender(SubscriptionRecord(id="s1", spec=spec, identity=None), Tools(*allowed))  # type: ignore[arg-type]
    yield sender
    await sender.close()


def attempt(number: int = 0) -> Attempt:
    message = Message("a/b", b"%d" % number, now_ms(), "http", "d", id=f"m{number}")
    backoff = Backoff(1.0, 2.0, uniform=random.uniform)
    return Attempt(number, Position(LogOffset(number), 0), "k", message, size=1, backoff=backoff)


async def test_all_attempts_share_a_connection_and_one_comes_after_its_end() -> None:
    async with running() as broker, sender_of(broker.port, "127.0.0.1") as sender:
        assert (await sender.consent()).refusal == ""
        assert await asyncio.gather(*(sender.send(attempt(n)) for n in range(20))) == [None] * 20
        assert broker.connections == 1
        broker.writers[0].close()
        while (failure := await sender.send(attempt())) is not None:  # until the end is known
            assert isinstance(failure, Failure)
        assert broker.connections == 2


async def test_attempts_in_flight_fail_with_the_connection_and_the_one_at_fault_alone_is_blamed() -> None:
    async def ending(packet: Packet, say: Say) -> None:
        await (say(Disconnect(code=0x95)) if isinstance(packet, Publish) else taking(packet, say))

    async with running(ending) as broker, sender_of(broker.port, "127.0.0.1") as sender:
        failure = await sender.send(attempt())
        assert failure is not None
        assert (failure.of_event, failure.final) == (True, True)
        assert "packet too large" in failure.error
        failures = await asyncio.gather(*(sender.send(attempt(n)) for n in range(3)))
        assert not any(one is None or one.of_event for one in failures)


async def test_a_broker_that_does_not_answer_costs_its_connection() -> None:
    async def silent(packet: Packet, say: Say) -> None:
        if isinstance(packet, Connect):
            await say(Connack())

    async with running(silent) as broker, sender_of(broker.port, "127.0.0.1", timeout=0.1) as sender:
        first = await sender.send(attempt())
        assert first is not None
        assert "no answer within 0.1 s" in first.error
        await sender.send(attempt())
        assert broker.connections == 2


async def test_a_broker_that_lets_nobody_in_is_a_sink_without_consent() -> None:
    async def refusing(packet: Packet, say: Say) -> None:
        await say(Connack(code=0x86))

    async with running(refusing) as broker, sender_of(broker.port, "127.0.0.1") as sender:
        assert "bad user name or password" in (await sender.consent()).refusal
        failure = await sender.send(attempt())
        assert failure is not None
        assert not failure.of_event


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_nothing_is_connected_to_that_the_guard_does_not_allow(host: str) -> None:
    async with running() as broker, sender_of(broker.port, "10.0.0.0/8", host=host) as sender:
        assert "private" in (await sender.consent()).refusal
        failure = await sender.send(attempt())
        assert failure is not None
        assert "private_sinks" in failure.error
        assert broker.connections == 0


async def test_what_cannot_be_published_is_the_events_own_fault() -> None:
    async with running() as broker, sender_of(broker.port, "127.0.0.1") as sender:
        one = attempt()
        one.message = msgspec.structs.replace(one.message, properties=(("a", "x" * 70_000),))
        failure = await sender.send(one)
        assert failure is not None
        assert (failure.of_event, failure.final) == (True, True)
        assert await sender.send(attempt()) is None
