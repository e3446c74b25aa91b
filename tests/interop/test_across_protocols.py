"""A message published by any real client is seen by real clients of all the other protocols."""

import asyncio
import itertools
import json
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import quote

import aio_pika
import aiocoap
import httpx
import pika
import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

TIMEOUT_S = 60
BODY = b'{"celsius": 21.5}'
JSON = "application/json"
COAP_CLIENT = next(filter(None, map(shutil.which, ("coap-client", "coap-client-notls", "coap-client-openssl"))), None)
MOSQUITTO_PUB = shutil.which("mosquitto_pub")
_numbers = itertools.count()

Seen = dict[str, Any]  # the fields of a message that a client can be shown; None where it was not
Reader = Callable[[], Awaitable[Seen]]  # waits for the next message
Publish = Callable[[Any, str], Awaitable[Seen]]  # to an address of a gateway; what was said


# ---- clients that read


def paho_client(gateway: Any, version: int) -> paho.Client:
    """Returns a client that is connected and whose loop runs."""
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"across-{time.monotonic_ns()}", protocol=version)
    client.connect("127.0.0.1", gateway.port("mqtt"))
    client.loop_start()
    return client


@asynccontextmanager
async def mqtt_messages(gateway: Any, address: str) -> AsyncIterator[asyncio.Queue[paho.MQTTMessage]]:
    """Yields what comes to a subscription by paho, MQTT 5."""
    loop, subscribed = asyncio.get_running_loop(), asyncio.Event()
    messages: asyncio.Queue[paho.MQTTMessage] = asyncio.Queue()
    client = paho_client(gateway, paho.MQTTv5)
    client.on_subscribe = lambda *_: loop.call_soon_threadsafe(subscribed.set)
    client.on_message = lambda _client, _data, message: loop.call_soon_threadsafe(messages.put_nowait, message)
    try:
        client.subscribe(address, qos=1)
        await subscribed.wait()
        yield messages
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)


@asynccontextmanager
async def mqtt_subscriber(gateway: Any, address: str) -> AsyncIterator[Reader]:
    """Yields a reader by paho, MQTT 5."""
    async with mqtt_messages(gateway, address) as messages:

        async def read() -> Seen:
            message = await messages.get()
            assert message.topic == address
            user = dict(getattr(message.properties, "UserProperty", ()))
            return {
                "body": message.payload,
                "content_type": getattr(message.properties, "ContentType", None),
                "type": user.get("type"),
                "correlation": getattr(message.properties, "CorrelationData", None),
                "source": user.get("source"),
                "colour": user.get("colour"),
            }

        yield read


@asynccontextmanager
async def events(gateway: Any, address: str) -> AsyncIterator[Callable[[], Awaitable[dict[str, Any]]]]:
    """Yields a reader of events as JSON, by httpx, server-sent events."""
    async with (
        httpx.AsyncClient(base_url=gateway.url, timeout=TIMEOUT_S, trust_env=False) as client,
        client.stream("GET", "/subscribe", params={"filter": address}) as response,
    ):
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("retry: ")

        async def read() -> dict[str, Any]:
            async for line in lines:
                name, _, value = line.partition(": ")
                if name == "data":
                    return json.loads(value)
            raise AssertionError("the stream has ended")

        yield read


@asynccontextmanager
async def event_stream(gateway: Any, address: str) -> AsyncIterator[Reader]:
    """Yields a reader of what events say."""
    async with events(gateway, address) as event:

        async def read() -> Seen:
            return of_event(await event())

        yield read


def of_event(event: Mapping[str, Any]) -> Seen:
    """Returns the fields that an event as JSON shows."""
    type_, source = event["type"], event["source"]
    correlation = event.get("correlationid")
    return {
        "body": event["data"],
        "content_type": event.get("datacontenttype"),
        "type": None if type_ == "headgate.message.v1" else type_,
        "correlation": None if correlation is None else correlation.encode(),
        "source": None if source.startswith("//headgate/") else source,
        "colour": event.get("colour"),
    }


@asynccontextmanager
async def amqp_consumer(gateway: Any, address: str) -> AsyncIterator[Reader]:
    """Yields a reader by aio-pika, a queue bound to amq.topic."""
    connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{gateway.port('amqp')}/", timeout=TIMEOUT_S)
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue("", exclusive=True)
        await queue.bind("amq.topic", routing_key(address))
        messages: asyncio.Queue[Any] = asyncio.Queue()
        await queue.consume(messages.put)

        async def read() -> Seen:
            message = await messages.get()
            await message.ack()
            assert (message.exchange, message.routing_key) == ("amq.topic", routing_key(address))
            correlation, headers = message.correlation_id, message.headers
            return {
                "body": message.body,
                "content_type": message.content_type,
                "type": message.type,
                "correlation": None if correlation is None else correlation.encode(),
                "source": headers.get("ce-source"),
                "colour": headers.get("ce-colour", headers.get("colour")),
            }

        yield read


@asynccontextmanager
async def coap_reader(gateway: Any, address: str) -> AsyncIterator[Reader]:
    """Yields a reader by aiocoap, which observes the last value."""
    context = await aiocoap.Context.create_client_context()

    async def read() -> Seen:
        uri = f"coap://127.0.0.1:{gateway.port('coap')}/t/{quote(address)}"
        answer = await context.request(aiocoap.Message(code=aiocoap.GET, uri=uri)).response
        assert answer.code == aiocoap.CONTENT
        number = answer.opt.content_format
        return {"body": answer.payload, "content_type": None if number is None else number.media_type}

    try:
        yield read
    finally:
        await context.shutdown()


def routing_key(address: str) -> str:
    """Returns the routing key of an address in these tests."""
    return address.replace(".", "%2E").replace("/", ".")


# ---- clients that publish


async def by_paho(gateway: Any, address: str, version: int, properties: Properties | None = None) -> None:
    """Publishes at QoS 1, and waits for the PUBACK."""
    client = await asyncio.to_thread(paho_client, gateway, version)
    try:
        sent = client.publish(address, BODY, 1, properties=properties)
        await asyncio.to_thread(sent.wait_for_publish, TIMEOUT_S)
        assert sent.is_published()
    finally:
        client.disconnect()
        await asyncio.to_thread(client.loop_stop)


async def paho_3(gateway: Any, address: str) -> Seen:
    await by_paho(gateway, address, paho.MQTTv311)
    return {}


async def paho_5(gateway: Any, address: str) -> Seen:
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = JSON
    properties.CorrelationData = "Anfrage ä".encode()
    properties.UserProperty = [("type", "reading"), ("colour", "rot")]
    await by_paho(gateway, address, paho.MQTTv5, properties)
    return {"content_type": JSON, "correlation": "Anfrage ä".encode(), "type": "reading", "colour": "rot"}


async def aiocoap_post(gateway: Any, address: str) -> Seen:
    context = await aiocoap.Context.create_client_context()
    try:
        uri = f"coap://127.0.0.1:{gateway.port('coap')}/t/{quote(address)}?type=reading&colour=rot&corr=aWQ"
        request = aiocoap.Message(code=aiocoap.POST, uri=uri, payload=BODY, content_format=50)
        assert (await context.request(request).response).code == aiocoap.CREATED
    finally:
        await context.shutdown()
    return {"content_type": JSON, "type": "reading", "colour": "rot", "correlation": b"id"}


async def post(gateway: Any, path: str, body: bytes, headers: Mapping[str, str], *, http2: bool) -> int:
    """Makes a POST by httpx, and returns its status."""
    async with httpx.AsyncClient(
        base_url=gateway.url, http1=not http2, http2=http2, timeout=TIMEOUT_S, trust_env=False
    ) as client:
        answer = await client.post(path, content=body, headers=headers)
        assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        return answer.status_code


def http_topic(*, http2: bool) -> Publish:
    async def publish(gateway: Any, address: str) -> Seen:
        headers = {"content-type": JSON, "ce-type": "reading", "ce-colour": "rot", "x-correlation-data": "aWQ="}
        assert await post(gateway, f"/topics/{quote(address)}", BODY, headers, http2=http2) == 201
        return {"content_type": JSON, "type": "reading", "colour": "rot", "correlation": b"id"}

    return publish


def http_event(write: Callable[[CloudEvent], Any], *, http2: bool) -> Publish:
    async def publish(gateway: Any, address: str) -> Seen:
        attributes = {"source": "/plant/1", "type": "com.example.reading", "subject": address, "colour": "rote Grütze"}
        event = CloudEvent({**attributes, "correlationid": "id", "datacontenttype": JSON}, json.loads(BODY))
        message = write(event)
        assert await post(gateway, "/events", message.body, message.headers, http2=http2) == 200
        said = {"content_type": JSON, "type": "com.example.reading", "source": "/plant/1", "colour": "rote Grütze"}
        return {**said, "correlation": b"id"}

    return publish


async def pika_publish(gateway: Any, address: str) -> Seen:
    def publish() -> None:
        parameters = pika.ConnectionParameters("127.0.0.1", gateway.port("amqp"), socket_timeout=TIMEOUT_S)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(
                content_type=JSON, type="reading", correlation_id="id", headers={"colour": "rot"}, delivery_mode=2
            )
            channel.basic_publish("amq.topic", routing_key(address), BODY, properties)

    await asyncio.to_thread(publish)
    return {"content_type": JSON, "type": "reading", "colour": "rot", "correlation": b"id"}


async def run(*command: str) -> None:
    """Runs a program to its end."""
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0, out


async def mosquitto_pub(gateway: Any, address: str) -> Seen:
    assert MOSQUITTO_PUB is not None
    said = ("content-type", JSON), ("correlation-data", "id"), ("user-property", "type", "reading")
    properties = [word for one in said for word in ("-D", "publish", *one)]
    where = ("-h", "127.0.0.1", "-p", str(gateway.port("mqtt")), "-t", address, "-q", "1")
    await run(MOSQUITTO_PUB, "-V", "mqttv5", *where, *properties, "-m", BODY.decode())
    return {"content_type": JSON, "type": "reading", "correlation": b"id"}


async def coap_client(gateway: Any, address: str) -> Seen:
    assert COAP_CLIENT is not None
    uri = f"coap://127.0.0.1:{gateway.port('coap')}/t/{quote(address)}?type=reading&colour=rot"
    await run(COAP_CLIENT, "-m", "post", "-t", "50", "-e", quote(BODY), uri)
    return {"content_type": JSON, "type": "reading", "colour": "rot"}


PUBLISHERS: dict[str, Publish] = {
    "paho-3.1.1": paho_3,
    "paho-5": paho_5,
    "aiocoap": aiocoap_post,
    "httpx-1.1": http_topic(http2=False),
    "httpx-2": http_topic(http2=True),
    "event-binary-1.1": http_event(to_binary_event, http2=False),
    "event-binary-2": http_event(to_binary_event, http2=True),
    "event-structured-1.1": http_event(to_structured_event, http2=False),
    "event-structured-2": http_event(to_structured_event, http2=True),
    "pika": pika_publish,
    "mosquitto_pub": mosquitto_pub,
    "coap-client": coap_client,
}
MISSING = {
    "mosquitto_pub": (MOSQUITTO_PUB is None, "mosquitto_pub is not installed"),
    "coap-client": (COAP_CLIENT is None, "libcoap's coap-client is not installed"),
}


def publishers() -> list[Any]:
    """Returns every client that publishes; one that is not installed is skipped with its reason."""
    marks = {name: [pytest.mark.skipif(absent, reason=why)] for name, (absent, why) in MISSING.items()}
    return [pytest.param(publish, id=name, marks=marks.get(name, ())) for name, publish in PUBLISHERS.items()]


@pytest.mark.parametrize("publish", publishers())
async def test_all_see_what_one_publishes(shared_gateway: Any, publish: Publish) -> None:
    address = f"across/{next(_numbers)}/dev.1/wärme"
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        clients = (mqtt_subscriber, event_stream, amqp_consumer)
        readers = {
            client.__name__: await stack.enter_async_context(client(shared_gateway, address)) for client in clients
        }
        readers["coap_reader"] = await stack.enter_async_context(coap_reader(shared_gateway, address))
        said = await publish(shared_gateway, address)
        for name, read in readers.items():
            seen = await read()
            body = seen.pop("body")
            assert (body if isinstance(body, dict) else json.loads(body)) == json.loads(BODY)
            assert seen == {field: said.get(field) for field in seen}, name


async def test_what_only_amqp_has_reaches_mqtt_5_as_user_properties(shared_gateway: Any) -> None:
    address = f"across/{next(_numbers)}/amqp"
    nested = {"list": [1, "zwei"], "table": {"flag": True}}
    properties = pika.BasicProperties(
        message_id="m-1", reply_to="answers", app_id="plant", headers={"colour": "rot", "nested": nested}
    )

    def publish() -> None:
        with pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", shared_gateway.port("amqp"))) as connection:
            connection.channel().basic_publish("amq.topic", routing_key(address), BODY, properties)

    async with asyncio.timeout(TIMEOUT_S), mqtt_messages(shared_gateway, address) as messages:
        await asyncio.to_thread(publish)
        user = dict((await messages.get()).properties.UserProperty)
    assert json.loads(user.pop("nested")) == nested
    assert {name: user.get(name) for name in ("id", "replyto", "appid", "colour")} == {
        "id": "m-1",
        "replyto": "answers",
        "appid": "plant",
        "colour": "rot",
    }


async def test_repeated_and_non_ascii_user_properties_reach_readers_of_events(shared_gateway: Any) -> None:
    address, properties = f"across/{next(_numbers)}/user", Properties(PacketTypes.PUBLISH)
    said = [("colour", "rot"), ("Größe", "10 µm"), ("colour", "grün"), ("Site Name", "x")]
    properties.UserProperty = said
    async with asyncio.timeout(TIMEOUT_S), events(shared_gateway, address) as event:
        await by_paho(shared_gateway, address, paho.MQTTv5, properties)
        found = await event()
    others = [tuple(pair) for pair in json.loads(found["headgateproperties"])]
    assert sorted([("colour", found["colour"]), *others]) == sorted(said)
    assert [value for name, value in [("colour", found["colour"]), *others] if name == "colour"] == ["rot", "grün"]


async def test_what_coap_deletes_is_gone_for_all(shared_gateway: Any) -> None:
    """A retained message at a segment that holds what a level may not, published over MQTT and deleted over CoAP."""
    level = "a%2Fb%2B"  # as others see the segment "a/b+"
    topic, path = f"across/deleted/{level}", f"/topics/across/deleted/{quote(level)}"
    uri = f"coap://127.0.0.1:{shared_gateway.port('coap')}/t/across/deleted/a%2Fb%2B"
    publisher = paho_client(shared_gateway, paho.MQTTv5)
    context = await aiocoap.Context.create_client_context()
    try:
        async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(base_url=shared_gateway.url) as web:
            await asyncio.to_thread(publisher.publish(topic, BODY, qos=1, retain=True).wait_for_publish, TIMEOUT_S)
            assert (await web.get(path)).content == BODY
            read = await context.request(aiocoap.Message(code=aiocoap.GET, uri=uri)).response
            assert read.payload == BODY
            deleted = await context.request(aiocoap.Message(code=aiocoap.DELETE, uri=uri)).response
            assert deleted.code == aiocoap.DELETED
            assert (await web.get(path)).status_code == 404
            read = await context.request(aiocoap.Message(code=aiocoap.GET, uri=uri)).response
            assert read.code == aiocoap.NOT_FOUND
        last = publisher.publish("across/deleted/last", b"1", qos=1, retain=True)
        await asyncio.to_thread(last.wait_for_publish, TIMEOUT_S)
        loop, seen = asyncio.get_running_loop(), asyncio.Queue[str]()
        subscriber = paho_client(shared_gateway, paho.MQTTv5)
        subscriber.on_message = lambda _client, _data, message: loop.call_soon_threadsafe(
            seen.put_nowait, message.topic
        )
        try:
            subscriber.subscribe("across/deleted/#", qos=1)
            assert await asyncio.wait_for(seen.get(), TIMEOUT_S) == "across/deleted/last"
        finally:
            subscriber.disconnect()
            await asyncio.to_thread(subscriber.loop_stop)
    finally:
        publisher.disconnect()
        await asyncio.to_thread(publisher.loop_stop)
        await context.shutdown()


async def test_a_command_reaches_a_coap_device_and_its_answer_the_mqtt_client(shared_gateway: Any) -> None:
    number = next(_numbers)
    command, answers = f"commands/dev{number}", f"answers/app{number}"
    uri = f"coap://127.0.0.1:{shared_gateway.port('coap')}/t"
    properties = Properties(PacketTypes.PUBLISH)
    properties.ResponseTopic, properties.CorrelationData = answers, b"request-7"
    context = await aiocoap.Context.create_client_context()
    try:
        async with asyncio.timeout(TIMEOUT_S), mqtt_subscriber(shared_gateway, answers) as read:
            await by_paho(shared_gateway, command, paho.MQTTv5)  # an address without a value is not observed
            observe = aiocoap.Message(code=aiocoap.GET, uri=f"{uri}/{command}?each=true", accept=65_011, observe=0)
            asked, heard = context.request(observe), asyncio.Queue[aiocoap.Message]()
            await asked.response
            with pytest.warns(DeprecationWarning, match="register_callback"):  # iterating, it keeps the newest alone
                asked.observation.register_callback(heard.put_nowait)
            for _ in range(20):
                await by_paho(shared_gateway, command, paho.MQTTv5, properties)
            told = [json.loads((await heard.get()).payload) for _ in range(20)]
            assert len({event["id"] for event in told}) == 20
            assert {(event["replyto"], event["correlationid"]) for event in told} == {(answers, "request-7")}
            answer = f"{uri}/{answers}?corr=cmVxdWVzdC03"
            await context.request(aiocoap.Message(code=aiocoap.POST, uri=answer, payload=b"done")).response
            assert (await read())["correlation"] == b"request-7"
    finally:
        await context.shutdown()
