"""Commands to a CoAP device that observes its address: the senders by HTTP and AMQP hear its answers.

`test_across_protocols` has the sender by MQTT 5.
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
