"""Named queues over a real store and controller, for tests that publish and consume without a socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.domain.principal import Principal
from gateway.port.adapter import (
    Cancel,
    Consume,
    ConsumerCancelled,
    ConsumerId,
    Disposition,
    Leased,
    Ready,
    Request,
    SettleLeased,
    Token,
)
from gateway.port.queues import DeclareQueue, address_of
from gateway.publishing.routing.router import Router
from gateway.queues.queues import NamedQueues
from store.api.log import Appended
from store.api.message import Message, encode
from store.base.errors import StoreError
from store.format.frame import ROW, ROW_EXTRA, UnplacedFrame
from store.local.local import LocalStore
from tests.support.gateway.asking import ask


class Conn:
    """A connection that takes at most `credit` messages until it is told otherwise."""

    def __init__(self, id_: int, credit: int = 1 << 30) -> None:
        self.id = id_
        self.gone = False
        self.principal = Principal(name="guest")
        self.closed: list[str] = []  # the words of an operator
        self.credit = credit
        self.taken: list[tuple[Message, int, int]] = []  # message, offset, deliveries
        self.offers: list[int] = []
        self.cancelled: list[int] = []
        self.denied: list[int] = []  # of `cancelled`
        self.number = 0  # of the queue that was delivered last
        self.changed = asyncio.Event()

    def deliver(self, offer: Leased | ConsumerCancelled) -> int:
        self.changed.set()
        if isinstance(offer, ConsumerCancelled):
            self.cancelled.append(offer.consumer)
            self.denied += [offer.consumer] if offer.denied else []
            return 0
        self.number = offer.number
        count = min(self.credit, len(offer.messages))
        self.credit -= count
        self.offers.append(len(offer.messages))
        self.taken += zip(offer.messages[:count], offer.offsets[:count], offer.deliveries[:count], strict=True)
        return count

    def force_close(self, reason: str) -> None:
        self.closed.append(reason)

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message, _, _ in self.taken]

    async def until(self, condition: Any) -> None:
        """Waits until a delivery makes a condition true."""
        async with asyncio.timeout(60):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def has(self, count: int) -> list[bytes]:
        await self.until(lambda: len(self.taken) >= count)
        assert len(self.taken) == count
        return self.bodies


async def settle(queues: NamedQueues, conn: Any, effect: SettleLeased) -> None:
    """Settles as the hub does, and waits for it."""
    if effect.token is not None:
        await queues.settle(conn, effect)
        return
    settling, moving = queues.settle_soon(conn, effect)
    await asyncio.gather(settling, *filter(None, [moving]))


class QueuesRig:
    """One process: its store and controller outlive `restart`."""

    def __init__(self, store: LocalStore, controller: LocalController) -> None:
        self.store = store
        self.controller = controller
        self.now_ms = 1_000
        self.conns = 0
        self.begin()

    def begin(self) -> None:
        self.router = Router(self.controller)
        self.queues = NamedQueues(self.store, self.controller, self.router, now_ms=lambda: self.now_ms)

    async def restart(self) -> None:
        await self.queues.close()
        self.begin()
        await self.queues.load()

    def conn(self, credit: int = 1 << 30) -> Conn:
        self.conns += 1
        return Conn(self.conns, credit)

    async def request(self, conn: Conn, request: Request[Any]) -> Any:
        return await ask(conn, request, queues=self.queues)

    async def declare(self, conn: Conn, name: str, **options: Any) -> Any:
        return await self.request(conn, DeclareQueue(name=name, **options))

    async def publish(self, exchange: str, key: str, *bodies: bytes, **fields: Any) -> list[int]:
        return await self.publish_to(address_of(exchange, key), *bodies, **fields)

    async def publish_to(self, address: str, *bodies: bytes, **fields: Any) -> list[int]:
        """Stores messages as the gateway does, and returns the named queues that received them."""
        rows, payload, found = b"", b"", {}
        for body in bodies:
            message = Message(address, body, **fields)
            record = encode(message)
            rows += ROW.pack(self.router.resolve(address).queues[0], len(payload), len(record), 0, 0, 0, 0, 0)
            for queue in self.router.named_queues(message):
                rows += ROW.pack(queue, len(payload), len(record), ROW_EXTRA, 0, 0, 0, 0)
                found[queue] = None
            payload += record
        stored = asyncio.get_running_loop().create_future()

        def done(outcome: Appended | StoreError) -> None:
            stored.set_result(outcome)

        self.store.log.append(UnplacedFrame.build(rows, payload), done)
        outcome = await stored
        assert isinstance(outcome, Appended), repr(outcome)
        self.queues.appended(found)
        return list(found)

    async def consume(self, conn: Conn, queue: str, consumer: int = 1, **options: Any) -> None:
        effect = Consume(consumer=ConsumerId(consumer), queue=queue, token=Token(0), **options)
        await self.queues.consume(conn, effect)

    async def settle(
        self, conn: Conn, queue: str, how: str, *offsets: int, number: int = 0, token: Token | None = None
    ) -> None:
        dispositions = [Disposition(offsets=offsets, outcome=how)]
        effect = SettleLeased(queue=queue, dispositions=dispositions, number=number, token=token)
        await settle(self.queues, conn, effect)

    def ready(self, conn: Conn, credit: int, consumer: int = 1, *, named: bool = False) -> None:
        """Lets a connection take more messages; with `named` the pump learns how many."""
        conn.credit = credit
        self.queues.ready(conn, Ready(consumer=ConsumerId(consumer), credit=credit if named else None))

    def cancel(self, conn: Conn, consumer: int = 1) -> None:
        self.queues.cancel(conn, Cancel(consumer=ConsumerId(consumer)))

    async def lose(self, conn: Conn) -> None:
        conn.gone = True
        await self.queues.connection_lost(conn)


@asynccontextmanager
async def opened_queues(path: Path, *topics: str, queues: int = 1, **options: Any) -> AsyncIterator[QueuesRig]:
    """Yields a rig over a new store and controller, which has "$amqp" and other topics, each of so many queues.

    `options` are the store's.
    """
    store = await LocalStore.open(path / "store", **options)
    controller = LocalController.open(path / "controller", now_ms=lambda: 0)
    for topic in ("$amqp", *topics):
        await controller.do(CreateTopic(name=topic, queues=queues))
    rig = QueuesRig(store, controller)
    await rig.queues.load()
    yield rig
    await rig.queues.close()
    await controller.close()
    await store.close()
