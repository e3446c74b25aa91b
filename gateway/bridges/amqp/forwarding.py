"""Forwarding: messages of our addresses to exchanges of an upstream. The cursor moves when they are confirmed there.

The bridge is a subscriber of the fan-out: messages that its window has no room for stay in the log, and cost a cursor.
The cursor is committed each second while it moves, never past a message that is not settled, so that a crash repeats
some and loses none.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from aiormq.exceptions import AMQPError, ChannelInvalidStateError, DeliveryError, PublishError

from gateway.bridges.amqp.link import OF_A_MESSAGE, Link, LinkLost, RawProperties
from gateway.bridges.amqp.places import Routes
from gateway.bridges.amqp.window import UpstreamMessage, Window
from gateway.bridges.shared.figures import Figures, count
from gateway.bridges.shared.reconnecting import reconnecting
from gateway.bridges.shared.settings import BridgeConfig
from gateway.bridges.shared.upstream_stream import text_of
from gateway.delivery.fanout import Fanout
from gateway.delivery.lanes import Subscriber
from gateway.domain.batch import LostRange
from gateway.domain.cursor import (
    Cursor,
    beginning_of,
    cursor_of,
    cursor_of_offsets,
    distance,
    earlier,
    later,
    offsets_of,
)
from gateway.ownership.owners import Owned, OwnershipLost
from gateway.port.adapter import Deliverable, Deliveries, SubscriptionId
from gateway.port.bridge import LOOPED, BrokerCodec, Forwarded, Scheme
from store.api.client import StoreClient
from store.base import logs
from store.base.errors import StoreError
from store.base.streams import Backoff, until_one_ends
from store.format.frame import Position

COMMIT_S: Final = 1.0  # between two commits of a cursor that moves
IDLE_COMMIT_BYTES: Final = 16 << 20  # an idle bridge's cursor is moved once it is this far behind
STOP_S: Final = 5.0  # that messages in flight have to be confirmed when the bridge stops here
BEGIN_MIN_S, BEGIN_MAX_S = 0.2, 5.0  # between attempts to read where the bridge goes on
MESSAGE_COST_BYTES: Final = 512  # of a message besides its body

log = logs.get(__name__)


class Forwarding:
    """The addresses that one bridge forwards (`gateway.delivery.lanes.Receiver`)."""

    def __init__(
        self,
        name: str,
        config: BridgeConfig,
        scheme: Scheme,
        *,
        codec: BrokerCodec,
        figures: Figures,
        fanout: Fanout,
        store: StoreClient,
        now_ms: Callable[[], int],
        uniform: Callable[[float, float], float],
        ready: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._name = name
        self._config = config
        self._scheme = scheme
        self._codec = codec
        self._figures = figures
        self._fanout = fanout
        self._store = store
        self._now_ms = now_ms
        self._uniform = uniform
        self._ready = ready
        self._failed = failed
        self._routes = Routes(name, config.forward)
        self._window = Window(count_max=config.receive_maximum, bytes_max=config.pending_bytes_max)
        self._subscriber = Subscriber(self)
        self._wake = asyncio.Event()  # set when a message may be sent
        self._sending: set[asyncio.Task[None]] = set()
        self._ids: set[str] = set()  # of mandatory messages in flight: aio-pika knows returned ones by these alone
        self._blocked = False  # less was taken than offered
        self._moved = False  # a message was settled since the last commit
        self._settled: Cursor = ()  # all messages before it are settled
        self._committed: Cursor = ()
        self.connected = False

    async def run(self, owned: Owned) -> None:
        """Forwards until cancelled. Raises `OwnershipLost`."""
        self._committed = self._settled = await self._begin(owned)
        for number, pattern in enumerate(dict.fromkeys(one.filter for one in self._config.forward)):
            self._fanout.subscribe(self._subscriber, SubscriptionId(number), pattern, self._settled)
        try:
            await until_one_ends(
                reconnecting(self._name, self._config, self._connection, failed=self._failed, uniform=self._uniform),
                self._committing(owned),
            )
        finally:
            self._settle()
            self._fanout.leave(self._subscriber)
            with contextlib.suppress(StoreError, OwnershipLost):
                if self._settled != self._committed:
                    await owned.write(cursor=offsets_of(self._settled))

    async def _begin(self, owned: Owned) -> Cursor:
        """Returns the cursor to go on from. A first one is stored before anything is forwarded."""
        backoff = Backoff(BEGIN_MIN_S, BEGIN_MAX_S, uniform=self._uniform)
        while True:
            try:
                if found := cursor_of_offsets(await owned.cursor()):
                    return found
                first = self._first()
                await owned.write(cursor=offsets_of(first))
            except StoreError as error:
                self._failed(f"the bridge's cursor cannot be read yet: {error}")
                await backoff.pause()
            else:
                return first

    def _first(self) -> Cursor:
        """Returns where a bridge begins that has not forwarded before. Raises `StoreError`."""
        if self._config.forward_from == "earliest":
            return cursor_of({group: beginning_of(group) for group in self._store.logs})
        return cursor_of({group: Position(one.log.confirmed, 0) for group, one in self._store.logs.items()})

    # ---- from the logs

    def deliver(self, deliveries: Deliverable) -> int:
        """Takes messages while there is room for them."""
        assert isinstance(deliveries, Deliveries)
        batch, window = deliveries.batch, self._window
        if isinstance(batch, LostRange):
            count(self._figures.not_forwarded, "lost")
            return 0
        for taken, index in enumerate(deliveries.picks):
            if window.full:
                self._blocked = True
                return taken
            message = batch.message(index)
            route = self._routes(message.address)
            if route is not None:
                size = len(message.body) + MESSAGE_COST_BYTES
                window.take(batch.position(index), route, message, size)
                self._wake.set()
        self._figures.unconfirmed = window.held_count
        return len(deliveries.picks)

    def _room(self) -> None:
        self._figures.unconfirmed = self._window.held_count
        if self._blocked and not self._window.full:
            self._blocked = False
            self._fanout.wake(self._subscriber)

    # ---- to the upstream

    async def _connection(self) -> None:
        """Runs one connection to its end, which it raises: `UpstreamError`."""
        link = await Link.open(self._name, self._config, self._scheme)
        try:
            await self._declare(link)
            self.connected = True
            self._ready()
            await until_one_ends(link.ended(), self._starting(link))
        except LinkLost as lost:
            self._suspect(lost)
            raise
        except asyncio.CancelledError:
            if self._sending:
                await asyncio.wait(self._sending, timeout=STOP_S)
            raise
        finally:
            self.connected = False
            for task in self._sending:
                task.cancel()
            await link.close()
            await asyncio.gather(*self._sending, return_exceptions=True)
            self._window.lost()
            self._ids.clear()

    async def _declare(self, link: Link) -> None:
        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                await link.declare(self._config)
        except (AMQPError, OSError, RuntimeError) as error:
            raise LinkLost(text_of(error)) from error

    def _suspect(self, lost: LinkLost) -> None:
        """Passes over a message that has ended the channel twice, the second time alone."""
        window = self._window
        if lost.code not in OF_A_MESSAGE:
            return
        if (accused := window.accused) is not None:
            self._pass_over(accused, "refused", str(lost))
        window.lost(suspicious=True)

    async def _starting(self, link: Link) -> None:
        window, config = self._window, self._config
        backoff = Backoff(config.reconnect_min_s, config.reconnect_max_s, uniform=self._uniform)
        while True:
            self._wake.clear()
            if window.refused:
                await backoff.pause()
            while (one := window.next()) is not None:
                content = self._content(link, one)
                if content is None:
                    continue
                if one.route.mandatory and content.id in self._ids:
                    window.put_back(one)
                    break
                self._ids.add(content.id)
                task = asyncio.create_task(self._send(link, one, content, backoff))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
            await self._wake.wait()

    async def _send(self, link: Link, one: UpstreamMessage, content: Forwarded, backoff: Backoff) -> None:
        """Sends a message, and notes the upstream's answer. Tasks get the channel's lock in their order."""
        try:
            await link.underlay.basic_publish(
                content.body,
                exchange=one.route.exchange,
                routing_key=one.route.routing_key,
                properties=RawProperties(content),
                mandatory=one.route.mandatory,
            )
        except PublishError:
            self._refused(one, "no queue of the upstream takes it (mandatory)")
        except DeliveryError:
            self._refused(one, "the upstream has refused it (basic.nack)")
        except ChannelInvalidStateError:
            pass  # the channel has ended, and `link.ended` says why
        except Exception as error:  # noqa: BLE001 - aio-pika rejects with whatever has ended the connection
            link.lose(error)  # the upstream may have the message; it is sent again
        else:
            backoff.reset()
            self._figures.forwarded += 1
            self._done(one)
        finally:
            self._ids.discard(content.id)

    def _content(self, link: Link, one: UpstreamMessage) -> Forwarded | None:
        """Returns the message to send; None where it is skipped."""
        message, route, now_ms = one.message, one.route, self._now_ms()
        if message.expires_at_ms is not None and message.expires_at_ms <= now_ms:
            self._pass_over(one, "expired")
            return None
        if route.too_long:
            self._pass_over(one, "routing_key", "its routing key is longer than 255 bytes")
            return None
        if len(message.body) > route.message_bytes_max:
            self._pass_over(one, "too_large", f"it has more than {route.message_bytes_max} bytes")
            return None
        content = self._codec.forwarded(
            message,
            upstream=link.upstream,
            fallback_id=str(one.position),
            header_bytes_max=link.header_bytes_max,
            now_ms=now_ms,
        )
        if content is None:
            self._pass_over(one, LOOPED)
        return content

    def _pass_over(self, one: UpstreamMessage, cause: str, why: str = "") -> None:
        count(self._figures.not_forwarded, cause)
        say = log.warning if why else log.debug
        at = str(one.position)
        say("bridge: a message is not forwarded", bridge=self._name, address=one.message.address, at=at, cause=why)
        self._done(one)

    def _refused(self, one: UpstreamMessage, why: str) -> None:
        if self._figures.error != why:
            log.warning("bridge: not forwarded yet", bridge=self._name, address=one.message.address, error=why)
        self._figures.error = why
        count(self._figures.not_forwarded, "again")
        self._window.was_refused(one)
        self._wake.set()

    def _done(self, one: UpstreamMessage) -> None:
        self._window.settled(one)
        self._moved = True
        if self.connected and self._figures.connected:
            self._figures.error = ""
        self._room()
        self._wake.set()

    # ---- the cursor

    def _settle(self) -> None:
        if self._subscriber.patterns:
            reached = self._fanout.reached(self._subscriber)
            self._settled = later(self._settled, earlier(reached, self._window.oldest()))

    async def _committing(self, owned: Owned) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            self._settle()
            self._figures.behind_bytes = distance(self._settled, self._fanout.now())
            moved, self._moved = self._moved, False
            if not moved and distance(self._committed, self._settled) <= IDLE_COMMIT_BYTES:
                continue
            try:
                await owned.write(cursor=offsets_of(self._settled))
                self._committed = self._settled
            except StoreError as error:
                self._moved = True
                log.warning("bridge: its cursor was not committed", bridge=self._name, error=str(error))
