"""Programs of aio-pika: connections that come again, iterators, patterns, consumers among others."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import ChannelPreconditionFailed, DeliveryError
from aio_pika.patterns import RPC, Master

from tests.support.amqp.programs.stage import TIMEOUT_S, Stage
from tests.support.process.relay import Relay


def _run(program: Coroutine[Any, Any, None]) -> None:
    """Runs a program to its end, in a loop of its own."""
    asyncio.run(asyncio.wait_for(program, TIMEOUT_S))


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


async def _robust(port: int) -> aio_pika.abc.AbstractRobustConnection:
    return await aio_pika.connect_robust(f"amqp://guest:guest@127.0.0.1:{port}/", reconnect_interval=0.05)


def a_consumer_comes_again(stage: Stage) -> None:
    """Loses its connection under a consumer, which goes on by itself and gets again what it had not acknowledged."""

    async def program() -> None:
        async with Relay(stage.port) as relay, await _robust(relay.port) as connection:
            channel = await connection.channel()
            await channel.set_qos(2)
            queue = await channel.declare_queue(stage.name("q"), durable=True)
            found: list[tuple[str, bool]] = []

            async def work(message: AbstractIncomingMessage) -> None:
                found.append((message.body.decode(), bool(message.redelivered)))
                if message.redelivered or message.body == b"1":
                    await message.ack()

            await queue.consume(work)
            for text in (b"0", b"1", b"2"):
                await channel.default_exchange.publish(aio_pika.Message(text), queue.name)
            await _until(lambda: len(found) == 3)
            stage.say(found)
            relay.cut()
            await _until(lambda: len(found) == 5)
            stage.say(found[3:])
            await queue.delete(if_unused=False, if_empty=False)

    _run(program())


def an_iterator_over_a_queue(stage: Stage) -> None:
    """Iterates over a queue, and gives a message back when its work fails."""

    async def program() -> None:
        async with await aio_pika.connect(stage.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(stage.name("q"), exclusive=True)
            for number in range(3):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
            failed = False
            async with queue.iterator() as messages:
                async for message in messages:
                    try:
                        async with message.process(requeue=True):
                            stage.say(message.body.decode(), message.redelivered)
                            if message.body == b"0" and not failed:
                                failed = True
                                raise LookupError
                    except LookupError:
                        continue
                    if message.body == b"2":
                        break
            stage.say(failed)

    _run(program())


def messages_nobody_routes(stage: Stage) -> None:
    """Publishes with confirms to where nothing is bound; the message comes back in an error."""

    async def program() -> None:
        async with await aio_pika.connect(stage.url) as connection:
            channel = await connection.channel(on_return_raises=True)
            try:
                await channel.default_exchange.publish(aio_pika.Message(b"x", type="t"), stage.name("nobody"))
            except DeliveryError as error:
                back: Any = error.message
                delivery = back.delivery
                stage.say(delivery.reply_code, delivery.reply_text, delivery.routing_key, back.body)
            await channel.default_exchange.publish(aio_pika.Message(b"y"), stage.name("nobody"), mandatory=False)
            stage.say(channel.is_closed)

    _run(program())


def calls_and_tasks(stage: Stage) -> None:
    """Calls functions by the patterns RPC and Master, one of which fails."""

    async def program() -> None:
        async with await aio_pika.connect(stage.url) as connection:
            channel = await connection.channel()
            rpc = await RPC.create(channel)

            async def multiply(*, x: int, y: int) -> int:
                if not y:
                    raise ValueError("nothing to multiply")
                return x * y

            await rpc.register(stage.name("multiply"), multiply, auto_delete=True)
            for y in (3, 0):
                try:
                    stage.say(await rpc.call(stage.name("multiply"), {"x": 2, "y": y}))
                except ValueError as error:
                    stage.say(error)
            master, found = Master(channel), asyncio.Queue[str]()

            async def work(*, task: str) -> None:
                found.put_nowait(task)

            worker = await master.create_worker(stage.name("tasks"), work, auto_delete=True)
            for text in ("a", "b"):
                await master.create_task(stage.name("tasks"), {"task": text})
            stage.say([await found.get() for _ in range(2)])
            await worker.close()
            await rpc.close()

    _run(program())


def a_channel_after_a_mistake(stage: Stage) -> None:
    """Makes a mistake on one channel; another one of the connection goes on."""

    async def program() -> None:
        async with await aio_pika.connect(stage.url) as connection:
            one, other = await connection.channel(), await connection.channel()
            queue = await one.declare_queue(stage.name("q"), exclusive=True, arguments={"x-max-length": 1})
            try:
                await other.declare_queue(queue.name, exclusive=True)
            except ChannelPreconditionFailed as error:
                stage.say(str(error).partition(" of type ")[0])  # which depends on the client
            stage.say(other.is_closed, one.is_closed, connection.is_closed)
            await one.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
            message = await queue.get(fail=True)
            stage.say(message.body.decode(), message.message_count)
            await message.ack()
            stage.say(await queue.get(fail=False))

    _run(program())


PROGRAMS = (
    a_consumer_comes_again,
    an_iterator_over_a_queue,
    messages_nobody_routes,
    calls_and_tasks,
    a_channel_after_a_mistake,
)
