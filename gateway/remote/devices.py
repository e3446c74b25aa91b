"""Devices that publish to a running gateway over MQTT and CoAP, for `headgate spark generate` and `replay`.

Over MQTT each device has a connection of its own, with its name as the client identifier; over CoAP all share one
endpoint, and the address names the device. Messages of one device are sent in their order, QoS 1 or Confirmable, and
one that is not acknowledged when a connection ends is sent again.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import aiocoap
import aiocoap.error
from aiocoap.numbers import ContentFormat

from gateway.base.client_tls import client_tls
from gateway.bridges.sinks.mqtt_link import MqttLink
from gateway.domain.errors import Refusal
from gateway.port.bridge import PublisherFactory, PublisherTerms
from gateway.push.guard import SinkUnreachable
from gateway.remote.http import RemoteRefused, Unreachable
from store.api.message import Message
from store.base.streams import Backoff

# The library's errors are raised, too; its log of them is tracebacks.
_LIBRARY: Final = logging.getLogger(f"{__name__}.aiocoap")
_LIBRARY.setLevel(logging.CRITICAL + 1)

CONNECT_S, ANSWER_S, KEEP_ALIVE_S = 10.0, 60.0, 60
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0
CONNECTING_MAX = 50  # connections that are opened at once
COAP_IN_FLIGHT_MAX = 32
READ_BYTES: Final = 64 << 10
COAP_PORT: Final = 5683


def _now_ms() -> int:
    return int(time.time() * 1_000)


class MqttDevices:
    """Devices at an MQTT listener. Raises `Unreachable` and `RemoteRefused`."""

    def __init__(self, url: str, factory: PublisherFactory, *, retry_s: float) -> None:
        self._url, self._factory, self._retry_s = urlsplit(url), factory, retry_s
        self._scheme = factory.schemes[self._url.scheme]
        self._tls = client_tls(None) if self._scheme.secure else None
        self._links: dict[str, MqttLink] = {}
        self._connecting = asyncio.Semaphore(CONNECTING_MAX)

    @property
    def _where(self) -> str:
        return f"{self._url.hostname}:{self._url.port or self._scheme.port}"

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publishes messages, those of one device in their order; returns when all are durable."""
        by_device: dict[str, list[Message]] = {}
        for message in messages:
            by_device.setdefault(message.device, []).append(message)
        await _all(self._publish(device, some) for device, some in by_device.items())

    async def close(self) -> None:
        """Disconnects."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()))

    async def _publish(self, device: str, messages: Sequence[Message]) -> None:
        for message in messages:
            backoff, until_s = Backoff(PAUSE_MIN_S, PAUSE_MAX_S), time.monotonic() + self._retry_s
            while True:
                try:
                    async with asyncio.timeout(ANSWER_S):
                        answer = await (await self._link(device)).publish(message.address, message)
                    break
                except Refusal as refusal:
                    raise RemoteRefused(400, f"{message.address}: {refusal}") from refusal
                except (SinkUnreachable, OSError) as error:
                    await self._drop(device)
                    pause_s = backoff.next_s()
                    if time.monotonic() + pause_s > until_s:
                        why = str(error) or "no answer"
                        raise Unreachable(
                            f"{self._where} has taken no message for {self._retry_s:g} s: {why}"
                        ) from error
                    await asyncio.sleep(pause_s)
            if answer is not None and answer.error:
                raise RemoteRefused(403, f"{self._where} refuses a message to {message.address}: {answer.error}")

    async def _link(self, device: str) -> MqttLink:
        link = self._links.get(device)
        if link is None or link.is_ended:
            async with self._connecting, asyncio.timeout(CONNECT_S):
                host, port = self._url.hostname or "", self._url.port or self._scheme.port
                name = None if self._tls is None else host
                stream = await asyncio.open_connection(
                    host, port, ssl=self._tls, server_hostname=name, limit=READ_BYTES
                )
                link = self._links[device] = await MqttLink.open(
                    stream, self._factory.publisher(self._terms(device)), _now_ms
                )
        return link

    async def _drop(self, device: str) -> None:
        link = self._links.pop(device, None)
        if link is not None:
            await link.close()

    def _terms(self, device: str) -> PublisherTerms:
        url = self._url
        return PublisherTerms(
            client_id=device,
            username=None if url.username is None else unquote(url.username),
            password=None if url.password is None else unquote(url.password),
            version="5.0",
            clean=True,
            session_expiry_s=0,
            keep_alive_s=KEEP_ALIVE_S,
            answer_timeout_ms=int(CONNECT_S * 1_000),
            receive_maximum=1,
            gateway="",
            older="write http://",
            qos=1,
            retain=False,
            structured=False,
            expiry_s=None,
            properties=(),
        )


class CoapDevices:
    """Devices at a CoAP listener over UDP. Raises `Unreachable` and `RemoteRefused`."""

    def __init__(self, url: str, *, retry_s: float) -> None:
        found = urlsplit(url)
        host = found.hostname or ""
        self._base = f"coap://{f'[{host}]' if ':' in host else host}:{found.port or COAP_PORT}"
        self._retry_s = retry_s
        self._context: aiocoap.Context | None = None
        self._in_flight = asyncio.Semaphore(COAP_IN_FLIGHT_MAX)

    async def publish(self, messages: Sequence[Message]) -> None:
        """Publishes messages, those of one device in their order; returns when all are durable."""
        if self._context is None:
            self._context = await aiocoap.Context.create_client_context(loggername=_LIBRARY.name)
        by_device: dict[str, list[Message]] = {}
        for message in messages:
            by_device.setdefault(message.device, []).append(message)
        await _all(self._publish(self._context, some) for some in by_device.values())

    async def close(self) -> None:
        """Ends the endpoint."""
        context, self._context = self._context, None
        if context is not None:
            await context.shutdown()

    async def _publish(self, context: aiocoap.Context, messages: Sequence[Message]) -> None:
        for message in messages:
            async with self._in_flight:
                await self._post(context, message)

    async def _post(self, context: aiocoap.Context, message: Message) -> None:
        query: Mapping[str, str] = {"time": str(message.time_ms), "id": message.id, "key": message.device}
        uri = f"{self._base}/t/{quote(message.address)}?{urlencode(query)}"
        until_s = time.monotonic() + self._retry_s
        while True:
            request = aiocoap.Message(
                code=aiocoap.POST, mtype=aiocoap.CON, uri=uri, payload=message.body, content_format=ContentFormat.JSON
            )
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer = await context.request(request).response
            except (aiocoap.error.Error, OSError) as error:
                if time.monotonic() > until_s:
                    why = str(error) or "no answer"
                    raise Unreachable(f"{self._base} has taken no message for {self._retry_s:g} s: {why}") from error
                await asyncio.sleep(PAUSE_MIN_S)
                continue
            if answer.code.is_successful():
                return
            text = answer.payload.decode("utf-8", "replace") or str(answer.code)
            raise RemoteRefused(400, f"{self._base} refuses a message to {message.address}: {text}")


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Does some work side by side. Raises the first error, once all has ended."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
