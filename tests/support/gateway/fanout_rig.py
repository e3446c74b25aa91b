"""A `Fanout` over logs in memory or on disk, and subscribers that keep what they are given."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from gateway.delivery.fanout import Fanout
from gateway.delivery.lanes import Subscriber
from gateway.domain.batch import LostRange
from gateway.port.adapter import Deliveries, SubscriptionId
from store.api.message import Message, encode
from store.format.frame import FIRST_QUEUE, ROW, LogOffset, Position, UnplacedFrame, group_of
from tests.support.gateway.memory_log import MemoryLog

ENDLESS = 1 << 30  # credit


class Receiver:
    """Takes as many deliveries as it has credit for."""

    def __init__(self, credit: int = ENDLESS) -> None:
        self.credit = credit
        self.got: list[tuple[bytes, Any]] = []
        self.positions: list[Position] = []  # of the same messages
        self.lost: list[tuple[int, int, Any]] = []

    def deliver(self, deliveries: Deliveries) -> int:
        if isinstance(deliveries.batch, LostRange):
            self.lost.append((deliveries.batch.frame, deliveries.batch.end, deliveries.batch.subs))
        taken = min(self.credit, len(deliveries.picks))
        self.credit -= taken
        for index, subs in list(zip(deliveries.picks, deliveries.subs, strict=True))[:taken]:
            self.got.append((deliveries.batch.messages[index].body, subs))
            self.positions.append(deliveries.batch.position(index))
        return taken

    @property
    def bodies(self) -> list[bytes]:
        return [body for body, _ in self.got]

    def of(self, group: int) -> list[bytes]:
        """Returns the bodies of messages of one log."""
        return [body for at, body in zip(self.positions, self.bodies, strict=True) if group_of(at.frame) == group]


class SessionHolder(Receiver):
    """A connection that holds a session, and counts how often it was superseded and shut down."""

    protocol = "mqtt"

    def __init__(self, credit: int = ENDLESS) -> None:
        super().__init__(credit)
        self.id = 0
        self.gone = False
        self.subscriber = Subscriber(self)
        self.superseded = 0
        self.shut = 0

    def supersede(self) -> None:
        self.superseded += 1

    def shut_down(self) -> None:
        self.shut += 1


class FanoutTasks:
    """A `Fanout` over a store, whose catch-ups run until `settle` returns. Unless told, topics have no queues."""

    def __init__(self, store: Any, **options: Any) -> None:
        self.store = store
        self.tasks: list[asyncio.Future[None]] = []
        options = {"queues_of": lambda _: None, "group_of": lambda _: 0} | options
        self.fanout = Fanout(store, spawn=self.spawn, **options)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def settle(self) -> None:
        """Waits for all catch-ups, and those that they begin."""
        while self.tasks:
            await self.tasks.pop()

    def subscribe(self, receiver: Any, *patterns: str, start: Any = None) -> tuple[Subscriber, Any]:
        """Returns a new subscriber to some patterns, and where its first subscription begins."""
        subscriber = Subscriber(receiver)
        begun = [self.fanout.subscribe(subscriber, SubscriptionId(n), p, start) for n, p in enumerate(patterns)]
        return subscriber, begun[0]


class FanoutRig(FanoutTasks):
    """The fan-out of one log in memory."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        super().__init__(self.log)

    def join(self, *patterns: str, credit: int = ENDLESS, start: Any = None) -> tuple[Subscriber, Receiver]:
        receiver = Receiver(credit)
        subscriber, _ = self.subscribe(receiver, *patterns, start=start)
        return subscriber, receiver


async def write_to(log: Any, *bodies: bytes, queue: int = FIRST_QUEUE) -> LogOffset:
    """Appends one frame of messages to a store's log; returns where it begins."""
    records = [encode(Message("t", body)) for body in bodies]
    rows, pos = [], 0
    for record in records:
        rows.append(ROW.pack(queue, pos, len(record), 0, 0, 1, 0, 0))
        pos += len(record)
    done = asyncio.get_running_loop().create_future()
    log.append(UnplacedFrame.build(b"".join(rows), b"".join(records)), done.set_result)
    return LogOffset((await done).frame)


def message(address, body):
    return Message(address, body)
