"""Legacy applications on AMQP 0-9-1: confirmed publishes, and one that consumes a queue (aio-pika)."""

import asyncio

import aio_pika
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage
from aio_pika.exceptions import AMQPError, DeliveryError

from deploy.demo.fleet import Fleet
from deploy.demo.plan import TOPIC, Reading

UNDER_WAY_MAX = 256  # publishes without an answer; a fleet that cannot keep up publishes less
PREFETCH = 500


async def run(fleet: Fleet) -> None:
    """Runs one publishing connection and one consuming."""
    url = f"amqp://guest:guest@{fleet.target.host}:{fleet.target.amqp}/"
    publisher, consumer = await aio_pika.connect(url), await aio_pika.connect(url)
    async with publisher, consumer:
        await _consume(fleet, consumer)
        channel = await publisher.channel(publisher_confirms=True)
        exchange = await channel.get_exchange("amq.topic")
        tasks: set[asyncio.Task[None]] = set()
        async for due in fleet.due():
            for _ in range(min(due, UNDER_WAY_MAX - len(tasks))):
                task = asyncio.create_task(_publish(fleet, exchange, fleet.readings.take()))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        fleet.phase = "stopped"
        await fleet.end.wait()


async def _consume(fleet: Fleet, connection: aio_pika.abc.AbstractConnection) -> None:
    seen = fleet.reader("AMQP queue")
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.declare_queue(f"demo-{fleet.run}", durable=True, auto_delete=False)
    await queue.bind("amq.topic", f"{TOPIC}.#")

    async def take(message: AbstractIncomingMessage) -> None:
        seen.add(message.body)
        await message.ack()

    await queue.consume(take)


async def _publish(fleet: Fleet, exchange: AbstractExchange, reading: Reading) -> None:
    message = aio_pika.Message(
        reading.body, content_type="application/json", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
    )
    try:
        await exchange.publish(message, routing_key=reading.address.replace("/", "."))
    except DeliveryError:
        fleet.count("refused")
    except (AMQPError, OSError):
        fleet.count("unknown")
    else:
        fleet.count("acked")
