"""Reading: queues of an upstream into the log. Messages are acknowledged there when they are durable here.

Messages that come while a batch is being stored are the next batch. A message that can never be stored (too large, a
reserved address, malformed) is rejected without requeue: the upstream dead-letters it where its queue says so. A
message that has been here before is acknowledged.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiormq.abc import DeliveredMessage
from aiormq.exceptions import AMQPError
from pamqp.commands import Basic

from gateway.bridges.amqp.link import Link, LinkLost
from gateway.bridges.amqp.places import place_of
from gateway.bridges.shared.amqp_settings import AmqpConsume
from gateway.bridges.shared.figures import Figures, count
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.storing import BridgeStore
from gateway.bridges.shared.upstream_stream import text_of
from gateway.domain.errors import Cause, Refusal
from gateway.port.bridge import LOOPED, BrokerCodec, Scheme
from store.api.message import Message
from store.base import logs
from store.base.streams import until_one_ends

LAST_WORDS_S: Final = 1.0  # for the last acknowledgements on a connection that ends

log = logs.get(__name__)


class _Delivered(NamedTuple):
    """A message that is not acknowledged."""

    tag: int
    size: int
    message: Message | None
    refusal: Refusal | None  # None without a message: it has been here before


class BridgeReading:
    """The queues of one bridge, over as many connections as it takes."""

    def __init__(
        self,
        name: str,
        config: BridgeConfig,
        scheme: Scheme,
        *,
        codec: BrokerCodec,
        figures: Figures,
        store: BridgeStore,
        message_bytes_max: int,
        now_ms: Callable[[], int],
        ready: Callable[[], None],
    ) -> None:
        self._name = name
        self._config = config
        self._scheme = scheme
        self._codec = codec
        self._figures = figures
        self._store = store
        self._message_bytes_max = message_bytes_max
        self._now_ms = now_ms
        self._ready = ready
        self._came: list[_Delivered] = []
        self._taken: Sequence[_Delivered] = ()  # being stored
        self._work = asyncio.Event()
        self.connected = False

    async def connection(self) -> None:
        """Runs one connection to its end, which it raises: `UpstreamError`."""
        config = self._config
        link = await Link.open(
            self._name,
            config,
            self._scheme,
            held_bytes_max=config.pending_bytes_max,
            message_bytes_max=self._message_bytes_max,
        )
        try:
            await self._consume(link)
            self.connected = True
            self._ready()
            await until_one_ends(link.ended(), self._storing(link))
        finally:
            self.connected = False
            try:
                batch = await self._store.last_outcome()
                if batch is not None and not batch.left:  # it can still be acknowledged, which saves repetitions
                    await self._last_words(link, batch.never)
            finally:
                self._came, self._taken = [], ()
                self._figures.unacknowledged = 0
                await link.close()

    async def _consume(self, link: Link) -> None:
        config = self._config
        try:
            async with asyncio.timeout(config.connect_timeout_s):
                await link.declare(config)
                prefetch = max(config.receive_maximum // len(config.consume), 1)
                await link.channel.set_qos(prefetch_count=prefetch)
                link.underlay.on_consumer_cancel_callbacks.add(
                    lambda _: link.lose(RuntimeError("the upstream has deleted a queue that is read"))
                )
                for one in config.consume:
                    await link.underlay.basic_consume(one.queue, self._receiver(link, one))
        except (AMQPError, OSError, RuntimeError) as error:
            raise LinkLost(text_of(error)) from error

    def _receiver(self, link: Link, one: AmqpConsume) -> Callable[[DeliveredMessage], Coroutine[Any, Any, None]]:
        async def received(delivered: DeliveredMessage) -> None:
            try:
                self._receive(link, one, delivered)
            except Exception as error:  # our own bug: aio-pika would go on without the message
                log.exception("bridge: a message was not understood", bridge=self._name)
                link.lose(error)

        return received

    def _receive(self, link: Link, one: AmqpConsume, delivered: DeliveredMessage) -> None:
        delivery = delivered.delivery
        assert isinstance(delivery, Basic.Deliver)
        content = link.content.take(delivered.header.properties.app_id)
        message, refusal = None, None
        try:
            if content.passed_over:
                raise Refusal(Cause.TOO_LARGE, f"a message has at most {self._message_bytes_max} bytes")
            place = place_of(self._name, one, delivery.exchange or "", delivery.routing_key or "")
            message = self._codec.read(
                content.properties, delivered.body, place, upstream=link.upstream, now_ms=self._now_ms()
            )
        except Refusal as error:
            refusal = error
        self._came.append(_Delivered(delivery.delivery_tag or 0, content.size_bytes, message, refusal))
        self._figures.unacknowledged += 1
        self._work.set()

    async def _storing(self, link: Link) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._came:
                self._taken, self._came = self._came, []
                refused = await self._store.stored([one.message for one in self._taken if one.message is not None])
                await self._settle(link, refused)

    async def _settle(self, link: Link, refused: Mapping[int, Refusal]) -> None:
        """Answers a batch that is stored, but for those refused for good, by their index among its messages."""
        taken, self._taken = self._taken, ()
        never: list[_Delivered] = []
        at = 0
        for one in taken:
            refusal = one.refusal
            if one.message is not None:
                refusal, at = refused.get(at), at + 1
            elif refusal is None:
                count(self._figures.refused, LOOPED)
            if refusal is not None:
                never.append(one)
                count(self._figures.refused, refusal.cause.value)
                log.warning("bridge: a message is skipped", bridge=self._name, cause=refusal.detail)
        await self._answer(link, taken, never)
        figures = self._figures
        figures.unacknowledged -= len(taken)
        link.content.release(sum(one.size for one in taken))

    async def _answer(self, link: Link, taken: Sequence[_Delivered], never: Sequence[_Delivered]) -> None:
        tags = {one.tag for one in never}
        try:
            for tag in sorted(tags):
                await link.underlay.basic_reject(tag, requeue=False, wait=False)
            acknowledged = [one.tag for one in taken if one.tag not in tags]
            if acknowledged:
                await link.underlay.basic_ack(max(acknowledged), multiple=True, wait=False)
        except (AMQPError, OSError, RuntimeError) as error:
            raise LinkLost(text_of(error)) from error

    async def _last_words(self, link: Link, refused: Mapping[int, Refusal]) -> None:
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._settle(link, refused)
        except (LinkLost, TimeoutError):
            pass
