"""pika and aio-pika against a gateway that is short of memory or disk: publishers are told, and stored all the same."""

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import aio_pika
import anyio
import pika
import pytest

from tests.support.amqp.pika_queues import TIMEOUT_S, bodies, connect, queue, until
from tests.support.cluster.small_disks import DISK_BYTES, SmallDisk, small_disk
from tests.support.process.gateways import GatewayProcess

pytestmark = pytest.mark.slow

RESERVE_BYTES = DISK_BYTES * 3 // 8  # with less than twice that free the disk is short; it is never full
LEAVE_BYTES = DISK_BYTES * 5 // 8
OLD_CLIENT = {
    "capabilities": {"publisher_confirms": True, "basic.nack": True}
}  # which knows of no `connection.blocked`


def told(connection: pika.BlockingConnection) -> list[str]:
    """Returns the reasons why a connection is blocked, which come with time; "" when it is not any more."""
    reasons: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: reasons.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: reasons.append(""))
    return reasons


def test_publishers_are_told_that_memory_is_short_and_stored_all_the_same(new_gateway):
    gateway = new_gateway(environ={"HEADGATE__GATEWAY__MEMORY_HIGH_BYTES": "1000"}).start()
    with contextlib.ExitStack() as stack:
        publisher, consumer = (stack.enter_context(connect(gateway)) for _ in range(2))
        published, consumed = told(publisher), told(consumer)
        channel, reader = publisher.channel(), consumer.channel()
        channel.confirm_delivery()
        name = queue(reader)
        sent = []

        def publish_until_told() -> bool:
            channel.basic_publish("amq.topic", name, b"%d" % len(sent))
            sent.append(b"%d" % len(sent))
            return bool(published)

        reader.queue_bind(name, "amq.topic", name)
        until(publish_until_told, publisher)
        assert published == ["low on memory"]
        channel.basic_publish("amq.topic", name, b"more")
        assert bodies(reader, name) == [*sent, b"more"]
        assert consumed == []
        listed = json.loads(gateway.admin("/amqp/connections"))["rows"]
        assert sorted((one["state"], one["consumers"]) for one in listed) == [("blocked", 0), ("running", 0)]


@pytest.fixture
def short_of_disk(tmp_path: Path) -> Iterator[tuple[GatewayProcess, SmallDisk]]:
    """Yields a gateway on a disk of its own, which is short of room once it is filled."""
    with small_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("this process may not mount a disk")
        environ = {"HEADGATE__STORE__DISK_RESERVE_BYTES": str(RESERVE_BYTES)}
        with contextlib.closing(GatewayProcess(tmp_path / "disk" / "data", environ=environ)) as gateway:
            yield gateway.start(), disk


def test_publishers_are_told_when_the_disk_is_short_and_when_it_is_not(short_of_disk):
    gateway, disk = short_of_disk
    with contextlib.ExitStack() as stack:
        publisher, old, consumer = (
            stack.enter_context(connect(gateway, client_properties=said)) for said in (None, OLD_CLIENT, None)
        )
        reasons = [told(one) for one in (publisher, old, consumer)]
        channels = [one.channel() for one in (publisher, old)]
        name = queue(reader := consumer.channel())
        sent: list[bytes] = []

        def publish() -> None:
            for channel in channels:
                channel.basic_publish("", name, b"%d" % len(sent))
                sent.append(b"%d" % len(sent))

        for channel in channels:
            channel.confirm_delivery()
        publish()
        disk.fill(leave=LEAVE_BYTES)
        until(lambda: (publish(), reasons[0])[1], publisher)
        publish()
        disk.free()
        until(lambda: len(reasons[0]) == 2, publisher)
        publish()
        for one in (publisher, old, consumer):
            one.process_data_events(0)
        assert reasons == [["low on disk", ""], [], []]
        assert bodies(reader, name) == sent


@pytest.mark.anyio
async def test_aio_pika_hears_of_it_and_loses_nothing(short_of_disk, caplog):
    gateway, disk = short_of_disk
    url = f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/"
    async with await aio_pika.connect(url) as publisher, await aio_pika.connect(url) as consumer:
        channel, reader = await publisher.channel(), await consumer.channel()
        queue = await reader.declare_queue(exclusive=True)
        sent = 0
        steps = ((partial(disk.fill, leave=LEAVE_BYTES), "blocked by: 'low on disk'"), (disk.free, "was unblocked"))
        for change, heard in steps:
            change()
            with anyio.fail_after(TIMEOUT_S):
                while heard not in caplog.text:
                    await channel.default_exchange.publish(aio_pika.Message(b"x"), queue.name)
                    sent += 1
        assert [len(caplog.text.split(word)) - 1 for word in ("was blocked", "was unblocked")] == [1, 1]
        assert (await reader.declare_queue(queue.name, passive=True)).declaration_result.message_count == sent
