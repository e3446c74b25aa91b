"""Sinks over MQTT: an event is taken when the broker has acknowledged it (QoS 1: PUBACK, QoS 2: PUBCOMP)."""

import asyncio
import ssl
from typing import Final
from urllib.parse import urlsplit

from gateway.bridges.shared.addresses import filled
from gateway.bridges.sinks.connections import CONNECT_S, OneLink, open_checked
from gateway.bridges.sinks.credentials import login_of
from gateway.bridges.sinks.mqtt_link import MqttLink
from gateway.domain.errors import Refusal
from gateway.port.bridge import PublisherFactory, PublisherTerms
from gateway.push.context import PushContext
from gateway.push.guard import SinkRefused, SinkUnreachable
from gateway.push.outbox import Attempt, Failure
from gateway.push.sender import Consent
from gateway.push.spec import SubscriptionRecord

KEEP_ALIVE_S: Final = 30


class MqttSender:
    """See `gateway.push.sender.EventSender`."""

    def __init__(
        self, record: SubscriptionRecord, context: PushContext, factory: PublisherFactory, *, version: str, gateway: str
    ) -> None:
        spec, settings = record.spec, record.spec.protocolsettings
        assert settings.topicname is not None
        self._topic = settings.topicname
        self._timeout_s = settings.timeout
        self._connect_s = min(CONNECT_S, settings.timeout)
        self._url = urlsplit(spec.sink)
        self._scheme = factory.schemes[self._url.scheme]
        self._context = context
        self._factory = factory
        username, password = login_of(spec)
        self._terms = PublisherTerms(
            client_id=settings.clientid or f"headgate-{record.id}",
            username=username,
            password=password,
            version=version,
            clean=True,
            session_expiry_s=0,
            keep_alive_s=KEEP_ALIVE_S,
            answer_timeout_ms=int(self._connect_s * 1_000),
            receive_maximum=1,  # the sender subscribes to no topic
            gateway=gateway,
            older="write protocol: MQTT3",
            qos=settings.qos,
            retain=settings.retain,
            structured=settings.mode == "structured",
            expiry_s=settings.expiry,
            properties=tuple(settings.userproperties.items()),
        )
        self._link = OneLink(self._open)

    async def consent(self) -> Consent:
        """See `OneLink.consent`."""
        return await self._link.consent()

    async def send(self, one: Attempt) -> Failure | None:
        """See `EventSender`."""
        link: MqttLink | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                link = await self._link.get()
                answer = await link.publish(filled(self._topic, {"address": one.message.address}), one.message)
        except TimeoutError:
            why = f"no answer within {self._timeout_s:g} s"
            if link is not None:
                link.lose(why)  # its packet identifier is not free, and nothing is sent twice on a connection
            return Failure(error=why)
        except (SinkUnreachable, SinkRefused) as error:
            return Failure(error=str(error))
        except Refusal as refusal:
            return Failure(error=str(refusal), of_event=True, final=True)
        if answer is None:
            return Failure(error="the sink has had the event before", passed=True)
        if answer.error:
            return Failure(error=answer.error, of_event=answer.of_message, final=answer.of_message)
        return None

    async def close(self) -> None:
        """See `EventSender`."""
        await self._link.close()

    async def _open(self) -> MqttLink:
        host, port = self._url.hostname or "", self._url.port or self._scheme.port
        tls: ssl.SSLContext | None = self._context.trust.brokers if self._scheme.secure else None
        try:
            async with asyncio.timeout(self._connect_s):
                stream = await open_checked(self._context.guard, host, port, tls)
                return await MqttLink.open(stream, self._factory.publisher(self._terms), self._context.now_ms)
        except TimeoutError as error:
            raise SinkUnreachable(f"{host}:{port} does not answer within {self._connect_s:g} s") from error
        except OSError as error:
            raise SinkUnreachable(f"{host}:{port} is not reached: {error}") from error
