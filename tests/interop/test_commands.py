"""Commands to a device, and the answers that their senders hear.

The device of the first tests observes its address by CoAP, and the senders use HTTP and AMQP: `test_across_protocols`
has the sender by MQTT 5. The others are sent by HTTP with `Prefer: wait`, to devices of each protocol.
"""

import asyncio
import itertools
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import aiocoap
import httpx
import pytest
from paho.mqtt.packettypes import PacketTypes

from gateway.delivery.answers import USER_WAITS_COUNT_MAX
from tests.support.mqtt.paho_client import PahoClient, properties

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

TIMEOUT_S = 30.0
_numbers = itertools.count()


class Device:
    """A device that observes its address, and answers where its commands say."""

    def __init__(self, context: aiocoap.Context, uri: str) -> None:
        self._context = context
        self._uri = uri
        self._heard: asyncio.Queue[aiocoap.Message] = asyncio.Queue()
        self._request: Any = None

    async def observe(self, address: str) -> None:
        """Begins to observe an address; it gets a value first, as one without is not observed."""
        uri = f"{self._uri}/{address}"
        await self._context.request(aiocoap.Message(code=aiocoap.PUT, uri=uri, payload=b"none yet")).response
        asked = aiocoap.Message(code=aiocoap.GET, uri=f"{uri}?each=true", accept=65_011, observe=0)
        self._request = self._context.request(asked)  # it is cancelled when nobody holds it
        await self._request.response
        with pytest.warns(DeprecationWarning, match="register_callback"):  # iterating, it keeps the newest alone
            self._request.observation.register_callback(self._heard.put_nowait)

    async def answer(self) -> dict[str, Any]:
        """Answers the next command, which it returns."""
        command: dict[str, Any] = json.loads((await self._heard.get()).payload)
        correlation = urlsafe_b64encode(command["correlationid"].encode()).decode().rstrip("=")
        uri = f"{self._uri}/{command['replyto']}?corr={correlation}"
        answer = aiocoap.Message(code=aiocoap.POST, uri=uri, payload=b"done")
        response = await self._context.request(answer).response
        assert response.code == aiocoap.CREATED, response.payload
        return command


@asynccontextmanager
async def device(gateway: Any) -> AsyncIterator[tuple[Device, str]]:
    """Yields a device, and the address that it observes."""
    context = await aiocoap.Context.create_client_context()
    try:
        one, address = Device(context, f"coap://127.0.0.1:{gateway.port('coap')}/t"), f"commands/d{next(_numbers)}"
        await one.observe(address)
        yield one, address
    finally:
        await context.shutdown()


async def test_a_sender_by_http_hears_the_answer(shared_gateway: Any) -> None:
    answers = f"answers/app{next(_numbers)}"
    async with (
        asyncio.timeout(TIMEOUT_S),
        device(shared_gateway) as (one, address),
        httpx.AsyncClient(base_url=shared_gateway.url, trust_env=False, timeout=TIMEOUT_S) as client,
        client.stream("GET", "/subscribe", params={"filter": answers}) as stream,
    ):
        event = {"ce-specversion": "1.0", "ce-id": answers, "ce-source": "/app", "ce-type": "command"}
        said = {**event, "ce-correlationid": "request-7", "x-reply-to": answers}
        done = await client.post(f"/topics/{address}", headers=said, content=b"open")
        assert done.status_code == 201
        assert (await one.answer())["replyto"] == answers
        heard = [line async for line in until_data(stream)]
        assert json.loads(heard[-1].removeprefix("data:"))["correlationid"] == "request-7"


async def until_data(stream: httpx.Response) -> AsyncIterator[str]:
    """Yields the lines of a stream of events until the first one with data."""
    async for line in stream.aiter_lines():
        yield line
        if line.startswith("data:"):
            return


@pytest.mark.parametrize("direct", [False, True], ids=["a queue", "direct reply-to"])
async def test_a_sender_by_amqp_hears_the_answer_in_the_queue_of_its_reply_to(
    shared_gateway: Any, direct: bool
) -> None:
    async with asyncio.timeout(TIMEOUT_S), device(shared_gateway) as (one, address):
        url = f"amqp://guest:guest@127.0.0.1:{shared_gateway.port('amqp')}/"
        async with await aio_pika.connect(url, timeout=TIMEOUT_S) as connection:
            channel = await connection.channel()
            name = f"answers.{next(_numbers)}/a+b"
            queue = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False) if direct else None
            queue = queue or await channel.declare_queue(name, exclusive=True)
            heard: asyncio.Queue[Any] = asyncio.Queue()
            await queue.consume(heard.put, no_ack=True)
            command = aio_pika.Message(b"open", reply_to=queue.name, correlation_id="request-8")
            topics = await channel.get_exchange("amq.topic", ensure=False)
            await topics.publish(command, address.replace("/", "."))
            assert (await one.answer())["replyto"].startswith("$amqp//")
            answer = await heard.get()
            assert (answer.body, answer.correlation_id) == (b"done", "request-8")


# ---- by HTTP, in one request


@pytest.fixture(params=[False, True], ids=["HTTP/1.1", "HTTP/2"])
async def sender(request: pytest.FixtureRequest, shared_gateway: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=shared_gateway.url,
        http1=not request.param,
        http2=request.param,
        trust_env=False,
        timeout=TIMEOUT_S,
        headers={"prefer": "wait=60"},
    ) as client:
        yield client


async def test_the_answer_of_a_coap_device_is_the_response(shared_gateway: Any, sender: httpx.AsyncClient) -> None:
    async with asyncio.timeout(TIMEOUT_S), device(shared_gateway) as (one, address), asyncio.TaskGroup() as tasks:
        told = tasks.create_task(one.answer())
        done = await sender.post(f"/topics/{address}", content=b"open")
        assert (done.status_code, done.content) == (200, b"done"), done.text
        assert done.headers["preference-applied"] == "wait=60"
        command = await told
        assert command["replyto"] == "answers/-"
        assert done.headers["ce-correlationid"] == command["correlationid"]


async def test_the_answer_of_an_mqtt_device_is_the_response(shared_gateway: Any, sender: httpx.AsyncClient) -> None:
    address, loop = f"commands/m{next(_numbers)}", asyncio.get_running_loop()
    device = await asyncio.to_thread(PahoClient(shared_gateway.port("mqtt")).connect)

    def answer() -> str:
        command: Any = device.get()
        said = properties(PacketTypes.PUBLISH, CorrelationData=command.properties.CorrelationData)
        said.ContentType, said.UserProperty = "application/json", [("color", "red")]
        device.publish(command.properties.ResponseTopic, b'{"open": true}', properties=said)
        return str(command.properties.ResponseTopic)

    try:
        await asyncio.to_thread(device.subscribe, address, 1)
        answered = loop.run_in_executor(None, answer)
        reply_to = f"answers/app{next(_numbers)}"
        done = await sender.post(f"/topics/{address}", headers={"x-reply-to": reply_to}, content=b"open")
        assert (done.status_code, done.json()) == (200, {"open": True})
        assert (done.headers["content-type"], done.headers["ce-color"]) == ("application/json", "red")
        assert await answered == reply_to
    finally:
        await asyncio.to_thread(device.close)


async def test_the_answer_of_a_server_of_amqp_is_the_response(shared_gateway: Any, sender: httpx.AsyncClient) -> None:
    """Any server of remote calls by AMQP will do: it answers to the default exchange, with `reply_to` as the key."""
    address = f"commands/a{next(_numbers)}"
    url = f"amqp://guest:guest@127.0.0.1:{shared_gateway.port('amqp')}/"
    async with asyncio.timeout(TIMEOUT_S), await aio_pika.connect(url, timeout=TIMEOUT_S) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await queue.bind("amq.topic", address.replace("/", "."))

        async def answer(command: Any) -> None:
            assert command.reply_to is not None
            said = aio_pika.Message(b"done", correlation_id=command.correlation_id, headers={"color": "red"})
            await channel.default_exchange.publish(said, command.reply_to)

        await queue.consume(answer, no_ack=True)
        reply_to = f"$amqp//app{next(_numbers)}"
        done = await sender.post(f"/topics/{address}", headers={"x-reply-to": reply_to}, content=b"open")
        assert (done.status_code, done.content, done.headers["ce-color"]) == (200, b"done", "red")


async def test_a_command_without_an_answer_is_accepted_and_found_once_it_is_answered(
    shared_gateway: Any, sender: httpx.AsyncClient
) -> None:
    address, reply_to = f"commands/n{next(_numbers)}", f"answers/app{next(_numbers)}"
    said = {"prefer": "wait=1", "x-reply-to": reply_to, "idempotency-key": f'"{reply_to}"'}
    done = await sender.post(f"/topics/{address}", headers=said, content=b"open")
    assert done.status_code == 202
    receipt = done.json()
    assert receipt["replyto"] == reply_to
    assert (await sender.get(f"/topics/{address}", headers={"prefer": ""})).content == b"open"
    correlated = {"ce-correlationid": receipt["correlationid"], "prefer": ""}
    await sender.post(f"/topics/{reply_to}", headers=correlated, content=b"late")
    again = await sender.post(f"/topics/{address}", headers=said, content=b"open")
    assert (again.status_code, again.content) == (200, b"late")


async def test_a_client_that_leaves_frees_its_waits(shared_gateway: Any) -> None:
    """Far more clients than may wait leave one after the other, and each is taken."""
    address = f"commands/l{next(_numbers)}"
    host, port = "127.0.0.1", shared_gateway.port("http")
    head = f"POST /topics/{address} HTTP/1.1\r\nhost: localhost\r\nprefer: wait=60\r\ncontent-length: 0\r\n\r\n"
    async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(base_url=shared_gateway.url, trust_env=False) as client:
        for _ in range(3):
            opened = [await asyncio.open_connection(host, port) for _ in range(USER_WAITS_COUNT_MAX // 2)]
            for _, writer in opened:
                writer.write(head.encode())
            for _, writer in opened:
                await writer.drain()
                writer.close()
        while True:  # those that left a moment ago may still count
            said = {"prefer": "wait=1"}
            answers = await asyncio.gather(
                *(client.post(f"/topics/{address}", headers=said) for _ in range(USER_WAITS_COUNT_MAX // 2))
            )
            if {answer.status_code for answer in answers} == {202}:
                break


async def test_a_gateway_that_goes_down_answers_the_commands_that_wait(new_gateway: Any) -> None:
    gateway = await asyncio.to_thread(new_gateway().start)
    address = f"commands/g{next(_numbers)}"
    async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
        waiting = asyncio.create_task(
            client.post(f"/topics/{address}", headers={"prefer": "wait=60"}, content=b"open", timeout=TIMEOUT_S)
        )
        while (await client.get(f"/topics/{address}")).status_code == 404:
            await asyncio.sleep(0.01)
        stopping = asyncio.create_task(asyncio.to_thread(gateway.stop))
        assert (await waiting).status_code == 202
        assert await stopping == 0
