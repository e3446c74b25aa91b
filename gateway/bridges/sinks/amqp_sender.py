"""Sinks over AMQP 0-9-1: an event is taken when the broker has confirmed it (`basic.ack`)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

from aiormq.exceptions import AMQPError, DeliveryError, PublishError

from gateway.base.config_reader import Secret
from gateway.bridges.amqp.link import OF_A_MESSAGE, Link, LinkLost, RawProperties
from gateway.bridges.shared.addresses import filled
from gateway.bridges.shared.amqp_settings import SHORT_BYTES_MAX
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.upstream_stream import UpstreamError
from gateway.bridges.sinks.connections import CONNECT_S, OneLink, open_checked
from gateway.bridges.sinks.credentials import login_of
from gateway.domain.errors import Cause, Refusal
from gateway.port.bridge import EventCodec, Forwarded, Scheme
from gateway.port.queues import routing_of
from gateway.push.context import PushContext
from gateway.push.guard import SinkRefused, SinkUnreachable
from gateway.push.outbox import Attempt, Failure
from gateway.push.sender import Consent
from gateway.push.spec import SubscriptionRecord
from store.api.message import Message
from store.base.streams import until_one_ends

KEEP_ALIVE_S: Final = 30  # between two heartbeats


class AmqpSender:
    """See `gateway.push.sender.EventSender`."""

    def __init__(self, record: SubscriptionRecord, context: PushContext, codec: EventCodec, scheme: Scheme) -> None:
        spec = record.spec
        self._id = record.id
        self._settings = settings = spec.protocolsettings
        self._context = context
        self._codec = codec
        self._scheme = scheme
        self._address = urlsplit(spec.sink).netloc
        username, password = login_of(spec)
        self._config = BridgeConfig(
            url=spec.sink,
            client_id=f"headgate-{record.id}",
            username=username,
            password=None if password is None else Secret(password),
            keep_alive_s=KEEP_ALIVE_S,
            connect_timeout_s=min(CONNECT_S, settings.timeout),
        )
        self._link = OneLink(self._open)
        self._in_flight = 0
        self._ids: dict[str, asyncio.Event] = {}  # of mandatory messages: aio-pika knows returned ones by these alone

    async def consent(self) -> Consent:
        """See `OneLink.consent`."""
        return await self._link.consent()

    async def send(self, one: Attempt) -> Failure | None:
        """See `EventSender`."""
        timeout_s = self._settings.timeout
        link: Link | None = None
        try:
            async with asyncio.timeout(timeout_s):
                link = await self._link.get()
                return await self._published(link, one.message)
        except TimeoutError:
            why = f"no answer within {timeout_s:g} s"
            if link is not None:
                link.lose(LinkLost(why))
            return Failure(error=why)
        except (SinkUnreachable, SinkRefused) as error:
            return Failure(error=str(error))
        except Refusal as refusal:
            return Failure(error=str(refusal), of_event=True, final=True)

    async def close(self) -> None:
        """See `EventSender`."""
        await self._link.close()

    async def _open(self) -> Link:
        guard, trust = self._context.guard, self._context.trust

        async def connect(host: str, port: int, secure: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await open_checked(guard, host, port, trust.brokers if secure else None)

        try:
            return await Link.open(self._id, self._config, self._scheme, connect=connect)
        except UpstreamError as error:
            raise SinkUnreachable(str(error)) from error
        except TimeoutError as error:
            raise SinkUnreachable(f"{self._address} does not answer in time") from error

    async def _published(self, link: Link, message: Message) -> Failure | None:
        settings = self._settings
        key = filled(
            settings.routingkey, {"key": routing_of(message.address)[1], "address": message.address}, separator="."
        )
        if len(key.encode("utf-8", "replace")) > SHORT_BYTES_MAX:
            raise Refusal(Cause.TOO_LARGE, f"the routing key is longer than {SHORT_BYTES_MAX} bytes")
        content = self._codec.content(
            message,
            structured=settings.mode == "structured",
            upstream=link.upstream,
            header_bytes_max=link.header_bytes_max,
            now_ms=self._context.now_ms(),
        )
        if content is None:
            return Failure(error="the sink has had the event before", passed=True)
        async with self._alone(content.id):
            self._in_flight += 1
            try:
                return await self._confirmed(link, key, content)
            finally:
                self._in_flight -= 1

    @contextlib.asynccontextmanager
    async def _alone(self, id_: str) -> AsyncIterator[None]:
        """Waits until no other mandatory message with this id is in flight."""
        if not self._settings.mandatory:
            yield
            return
        while (other := self._ids.get(id_)) is not None:
            await other.wait()
        ended = self._ids[id_] = asyncio.Event()
        try:
            yield
        finally:
            del self._ids[id_]
            ended.set()

    async def _confirmed(self, link: Link, key: str, content: Forwarded) -> Failure | None:
        """Publishes, and waits for the broker's word or the end of the connection."""
        try:
            await until_one_ends(self._publish(link, key, content), link.ended())
        except PublishError:
            return Failure(error="no queue of the sink takes it (mandatory)", of_event=True)
        except DeliveryError:
            return Failure(error="the sink has refused it (basic.nack)")
        except (AMQPError, UpstreamError, OSError, RuntimeError) as error:
            link.lose(error)
            return self._failure(link.lost)
        return None

    async def _publish(self, link: Link, key: str, content: Forwarded) -> None:
        settings = self._settings
        try:
            await link.underlay.basic_publish(
                content.body,
                exchange=settings.exchange,
                routing_key=key,
                properties=RawProperties(content),
                mandatory=settings.mandatory,
            )
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise LinkLost("the connection has ended") from None  # aio-pika cancels tasks that wait for a confirm

    def _failure(self, lost: LinkLost) -> Failure:
        """Returns the failure of an event that was in flight when the connection ended."""
        at_fault = lost.code in OF_A_MESSAGE and self._in_flight == 1
        return Failure(error=str(lost), of_event=at_fault, final=at_fault)
