"""Bodies in parts, by aio-pika and pika over real sockets: a gateway never holds one of them whole."""

import hashlib
import itertools
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pika
import pytest

from tests.support.amqp.pika_queues import connect, count, deaths, fresh, get, queue
from tests.support.mqtt.paho_client import PahoClient
from tests.support.process.gateways import GatewayProcess, restart

pytestmark = pytest.mark.slow

MiB = 1 << 20
LARGE = 100 * MiB
HELD_BYTES = 40 * MiB  # more than a gateway may hold while a body of `LARGE` goes through it
CONFIG = """
[gateway]
max_message_bytes = 134_217_728

[adapters.amqp]
message_bytes_max = 134_217_728
whole_bytes_max = 1_048_576
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory) -> Iterator[GatewayProcess]:
    directory = tmp_path_factory.mktemp("bodies")
    config = directory / "headgate.toml"
    config.write_text(CONFIG)
    process = GatewayProcess(directory / "data", "--config", str(config)).start()
    yield process
    process.close()


@pytest.fixture
def channel(gateway) -> Iterator[Any]:
    with connect(gateway) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def body_of(number: int, size: int = 3 * MiB) -> bytes:
    """Returns a body that differs from all others, and everywhere within itself."""
    return random.Random(number).randbytes(size)


def memory(gateway: GatewayProcess, key: str) -> int:
    """Returns how many bytes of memory a gateway has: VmRSS now, or VmHWM at most since `forget_peak`."""
    lines = Path(f"/proc/{gateway.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def forget_peak(gateway: GatewayProcess) -> int:
    Path(f"/proc/{gateway.process.pid}/clear_refs").write_text("5")
    return memory(gateway, "VmRSS")


@pytest.mark.anyio
async def test_a_body_of_100_mib_goes_through_and_is_never_held(gateway):
    """aio-pika publishes it with a confirm and consumes it."""
    body = body_of(1, LARGE)
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/")
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue(fresh("large"), durable=True)
        before = forget_peak(gateway)
        await channel.default_exchange.publish(aio_pika.Message(body, headers={"h": 1}), routing_key=queue.name)
        assert memory(gateway, "VmHWM") - before < HELD_BYTES
        before = forget_peak(gateway)
        async with queue.iterator() as messages:
            async for message in messages:
                assert hashlib.sha256(message.body).digest() == hashlib.sha256(body).digest()
                assert message.headers == {"h": 1}
                await message.ack()
                break
        assert memory(gateway, "VmHWM") - before < HELD_BYTES
        assert (await channel.declare_queue(queue.name, passive=True)).declaration_result.message_count == 0
        await queue.delete()


def test_all_ways_out(channel):
    """basic.get, redelivery, basic.return and a dead letter have all of the body."""
    name = queue(channel, dead_letter_exchange="", dead_letter_routing_key=(dead := queue(channel)))
    body = body_of(2)
    channel.basic_publish("", name, body, pika.BasicProperties(headers={"h": "v"}, message_id="m"))
    method, properties, got = get(channel, name)
    assert (got, properties.headers, properties.message_id, method.redelivered) == (body, {"h": "v"}, "m", False)
    channel.basic_nack(method.delivery_tag, requeue=True)
    method, _, got = get(channel, name)
    assert (got, method.redelivered) == (body, True)
    channel.basic_reject(method.delivery_tag, requeue=False)
    _, properties, got = get(channel, dead, auto_ack=True)
    assert got == body
    assert deaths(properties)[0][1] == "rejected"
    with pytest.raises(pika.exceptions.UnroutableError) as returned:
        channel.basic_publish("", fresh("nobody"), body, mandatory=True)
    assert returned.value.messages[0].body == body
    assert (count(channel, name), count(channel, dead)) == (0, 0)


def test_small_and_long_bodies_keep_their_order(channel):
    """Each has its confirm, and a prefetch of one counts both alike."""
    name = queue(channel)
    sent = [body_of(n, size) for n, size in enumerate((5, 3 * MiB, 5, 2 * MiB, MiB, 7, 2 * MiB))]
    for body in sent:
        channel.basic_publish("", name, body)
    channel.basic_qos(prefetch_count=3)
    found = []
    for method, _, body in channel.consume(name, inactivity_timeout=60):
        assert method is not None
        found.append(body)
        channel.basic_ack(method.delivery_tag)
        if len(found) == len(sent):
            break
    channel.cancel()
    assert found == sent


def test_what_a_body_in_parts_cannot_have_is_refused(gateway, channel):
    for properties in (
        pika.BasicProperties(headers={"x-delay": 1_000}),
        pika.BasicProperties(headers={"x-retain": True}),
    ):
        with connect(gateway) as connection:
            other = connection.channel()
            other.confirm_delivery()
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                other.basic_publish("", queue(channel), body_of(3), properties)
            assert closed.value.reply_code == 406
    with connect(gateway) as connection:
        other = connection.channel()
        other.tx_select()
        other.basic_publish("", queue(channel), body_of(3))
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            other.tx_commit()
        assert closed.value.reply_code == 406


def test_subscribers_of_other_protocols_do_not_get_it_and_are_not_hurt(gateway, channel):
    name = queue(channel)
    channel.queue_bind(name, "amq.topic", "plant.#")
    subscriber = PahoClient(gateway.port("mqtt")).connect()
    subscriber.subscribe("plant/#", 1)
    channel.basic_publish("amq.topic", "plant.a", body_of(4))
    channel.basic_publish("amq.topic", "plant.b", b"small")
    assert subscriber.get().topic == "plant/b"
    subscriber.drop()
    assert get(channel, name)[2] == body_of(4)
    assert get(channel, name)[2] == b"small"
    assert "goes to queues alone" in gateway.log.read_text()


PUBLISHER = """
import random, sys, itertools, pika
port, name, first = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.confirm_delivery()
for number in itertools.count(first):
    body, properties = random.Random(number).randbytes(8 << 20), pika.BasicProperties(message_id=str(number))
    print("sending", number, flush=True)
    channel.basic_publish("", name, body, properties)
    print("confirmed", number, flush=True)
"""


def test_kill_9_in_the_middle_of_a_body_loses_nothing_that_was_confirmed(new_gateway, tmp_path):
    """Confirmed bodies are whole, all others whole or not there, and the same is so of dead letters."""
    config = tmp_path / "headgate.toml"
    config.write_text(CONFIG)
    gateway = new_gateway("--config", str(config)).start()
    with connect(gateway) as connection:
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        connection.channel().queue_declare("dead", durable=True)
        connection.channel().queue_declare("bodies", durable=True, arguments=arguments)
    confirmed, sending = set[int](), 0
    for cycle in range(2):
        publisher = subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(gateway.port("amqp")), "bodies", str(sending + 1)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in publisher.stdout:
            what, number = line.split()
            sending = max(sending, int(number))
            confirmed |= {int(number)} if what == "confirmed" else set()
            if what == "sending" and len(confirmed) >= 2 * (cycle + 1):
                break
        if cycle:  # in the middle of a dead letter, too
            with connect(gateway) as connection:
                channel = connection.channel()
                channel.basic_reject(get(channel, "bodies")[0].delivery_tag, requeue=False)
                channel.connection.process_data_events(0.02)
                gateway.kill()
        else:
            time.sleep(0.02)  # a part of what one body takes
            gateway.kill()
        for line in publisher.stdout:
            what, number = line.split()
            sending = max(sending, int(number))
            confirmed |= {int(number)} if what == "confirmed" else set()
        publisher.stdout.close()
        publisher.wait(60)
        restart(gateway)
    found = []
    with connect(gateway) as connection:
        channel = connection.channel()
        for name in ("bodies", "dead"):
            for _, properties, body in itertools.takewhile(lambda got: got[0], _all(channel, name)):
                number = int(properties.message_id)
                assert body == body_of(number, 8 * MiB)
                found.append(number)
    assert len(found) == len(set(found)), "doubled"
    assert confirmed <= set(found) <= set(range(1, sending + 1))


def _all(channel: Any, name: str) -> Iterator[Any]:
    while True:
        yield channel.basic_get(name, auto_ack=True)
