"""Messages that leave their queues, against a model of RabbitMQ: dead letters, limits, expiry, transactions, crashes.

The model is lists of messages. After each step, and after each crash, every queue holds what the model says, in its
order. A crash is a copy of the log as it is while a step is under way: of that step all is there, or nothing. Damage
takes the messages of one frame, in whatever queue they are; each of them is counted once, and holds nothing else up.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.port.queues import GetMessage, address_of
from gateway.queues.leaving.reading import read
from gateway.queues.leaving.rules import NO_RULES
from gateway.queues.leaving.upkeep import OWNER
from store.api.message import Message, decode, encode
from store.base.errors import CorruptFrame
from store.format.frame import HEADER, ROW, ROW_EXTRA, Frame, QueueOffset
from store.local.local import LocalStore
from tests.support.gateway.queues_rig import QueuesRig
from tests.support.process.clock import Clock
from tests.support.process.examples import examples
from tests.support.store.flips import flip_frame

CLIENTS = range(2)
NEVER_MS = 1 << 60
DERIVED = shutil.ignore_patterns("views*", "LOCK")  # files that a store makes again from its log

Work: TypeAlias = Callable[[], Awaitable[Any]]  # the gateway's part, after the model's


class Rules(NamedTuple):
    """A queue as it is declared: its dead letters go to the queue `dead`, with the key they had where it is None."""

    ttl_ms: int | None = None
    length: int | None = None
    dead: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        said = {"x-message-ttl": self.ttl_ms, "x-max-length": self.length, "x-dead-letter-routing-key": self.dead}
        found = {name: value for name, value in said.items() if value is not None}
        return found | ({} if self.dead is None else {"x-dead-letter-exchange": ""})


QUEUES = {
    "short": Rules(length=3, dead="dead"),
    "brief": Rules(ttl_ms=100, dead="dead"),
    "work": Rules(dead="short"),
    "dead": Rules(ttl_ms=250, dead="brief"),  # a circle with "brief"
    "least": Rules(ttl_ms=60, length=1),
}


class Entry(msgspec.Struct):
    """A message in a queue."""

    number: int
    stored_ms: int
    expires_ms: int
    deaths: list[tuple[str, str]]  # queue and reason, the last first
    lost: bool = False


class Held(NamedTuple):
    """A message that a client has got, and the place in its queue to which it returns."""

    queue: str
    place: int
    entry: Entry


class LeavingModel:
    """All queues, as RabbitMQ would have them."""

    def __init__(self) -> None:
        self.ready: dict[str, list[tuple[int, Entry]]] = {name: [] for name in QUEUES}  # by place, ascending
        self.held: dict[int, list[Held]] = {client: [] for client in CLIENTS}
        self.places = 0
        self.skipped = 0  # lost messages
        self.passed: list[LeavingModel] = []  # states that a crash might have left, message by message

    def put(self, queue: str, entry: Entry) -> None:
        self.places += 1
        self.ready[queue].append((self.places, entry))

    def give_back(self, queue: str, place: int, entry: Entry) -> None:
        self.ready[queue] = sorted([*self.ready[queue], (place, entry)], key=lambda one: one[0])

    def dead_letter(self, queue: str, entry: Entry, reason: str, now_ms: int) -> None:
        """Moves a message to the queue of dead letters, or drops it where it would go in a circle without a
        rejection.
        """
        target = QUEUES[queue].dead
        if target is None or entry.lost:
            self.skipped += target is not None
            self.passed.append(self.crashed())
            return
        deaths = [(queue, reason), *[one for one in entry.deaths if one != (queue, reason)]]
        rejected = [why for _, why in [*deaths, ("", "rejected")]].index("rejected")
        since_rejected = [name for name, _ in deaths[:rejected]]
        if reason == "rejected" or target not in since_rejected:
            self.put(target, Entry(entry.number, now_ms, NEVER_MS, deaths))
        self.passed.append(self.crashed())

    def expire(self, queue: str, now_ms: int) -> None:
        """Takes what has expired from the head; what is behind a message that has not stays."""
        ttl_ms = QUEUES[queue].ttl_ms
        while ready := self.ready[queue]:
            entry = ready[0][1]
            if entry.lost:
                self.skip(queue, 1)
                continue
            if min(entry.expires_ms, NEVER_MS if ttl_ms is None else entry.stored_ms + ttl_ms) > now_ms:
                return
            ready.pop(0)
            self.dead_letter(queue, entry, "expired", now_ms)

    def trim(self, queue: str, now_ms: int) -> None:
        self.expire(queue, now_ms)
        length = QUEUES[queue].length
        while length is not None and len(self.ready[queue]) > length:
            if self.skip(queue, 1):
                continue
            self.dead_letter(queue, self.ready[queue].pop(0)[1], "maxlen", now_ms)
        self.expire(queue, now_ms)

    def skip(self, queue: str, among: int) -> bool:
        """Skips the lost ones among the first messages of a queue; returns whether there were any."""
        first, rest = self.ready[queue][:among], self.ready[queue][among:]
        sound = [one for one in first if not one[1].lost]
        self.ready[queue] = [*sound, *rest]
        self.skipped += len(first) - len(sound)
        return len(sound) < len(first)

    def entries(self) -> list[tuple[str, Entry]]:
        """Returns all messages that are not lost, those held included, with their queues."""
        ready = [(name, entry) for name, some in self.ready.items() for _, entry in some]
        held = [(one.queue, one.entry) for some in self.held.values() for one in some]
        return [one for one in [*ready, *held] if not one[1].lost]

    def publish(self, queue: str, numbers: list[int], now_ms: int, expires_ms: int = NEVER_MS) -> None:
        for number in numbers:
            self.put(queue, Entry(number, now_ms, expires_ms, []))

    def settle(self, client: int, how: str, chosen: list[Held], now_ms: int) -> None:
        for one in chosen:
            self.held[client].remove(one)
            if how == "requeue":
                self.give_back(*one)
            elif how == "reject":
                self.dead_letter(one.queue, one.entry, "rejected", now_ms)

    def lose(self, client: int) -> None:
        """Returns what a client holds to its place."""
        held, self.held[client] = self.held[client], []
        for one in held:
            self.give_back(*one)

    def crashed(self) -> "LeavingModel":
        """Returns the same state once all clients are gone."""
        found = deepcopy(self)
        found.passed = []
        for client in CLIENTS:
            found.lose(client)
        return found

    def numbers(self) -> dict[str, list[int]]:
        return {name: [entry.number for _, entry in ready] for name, ready in self.ready.items()}


class LeavingWorld:
    """The queues of a gateway over a store that is killed now and then, beside the model."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.clock = Clock()
        self.model = LeavingModel()
        self.lives = 0
        self.published = 0
        self.leased: dict[tuple[str, int], QueueOffset] = {}  # leased messages, by queue and place

    async def open(self) -> None:
        directory = self.home / f"store{self.lives}"
        # Without a cache, so that damage is met at once.
        self.store = await LocalStore.open(directory, now_ms=self.clock.now_ms, cache_bytes_max=0)
        self.rig = QueuesRig(self.store, self.controller)
        self.rig.now_ms = self.clock.ms
        await self.rig.queues.load()
        self.conns = {client: self.rig.conn() for client in CLIENTS}

    async def begin(self) -> None:
        self.controller = LocalController.open(self.home / "controller", now_ms=self.clock.now_ms)
        await self.controller.do(CreateTopic(name="$amqp", queues=1))
        await self.open()
        for name, rules in QUEUES.items():
            await self.rig.declare(self.conns[0], name, durable=True, arguments=rules.arguments)

    async def close(self) -> None:
        await self.rig.queues.close()
        await self.store.close()

    def queue(self, name: str) -> Any:
        return self.rig.queues.registry.queues[name]

    # ---- steps of the gateway; each beside the same step of the model

    async def publish(self, queue: str, count: int, expires_in_ms: int | None) -> Work:
        """Publishes one frame of messages."""
        numbers = self.fresh(count)
        limited = QUEUES[queue].length is not None  # there, age or the limit could end a message
        expires_ms = None if expires_in_ms is None or limited else self.clock.ms + expires_in_ms
        self.model.publish(queue, numbers, self.clock.ms, NEVER_MS if expires_ms is None else expires_ms)
        bodies = [b"%d" % number for number in numbers]
        return lambda: self.rig.publish("", queue, *bodies, expires_at_ms=expires_ms)

    async def settle(self, client: int, how: str, count: int) -> Work:
        """Acknowledges, rejects or gives back messages of one queue."""
        chosen = self.chosen(client, count)
        offsets = [self.leased[one.queue, one.place] for one in chosen]
        self.model.settle(client, how, chosen, self.clock.ms)
        conn, rig = self.conns[client], self.rig
        return lambda: rig.settle(conn, chosen[0].queue, how, *offsets) if chosen else asyncio.sleep(0)

    async def commit(self, client: int, count: int, targets: list[str]) -> Work:
        """Acknowledges messages and publishes others, as one transaction."""
        settled: dict[str, list[QueueOffset]] = {}
        for one in self.model.held[client][:count]:
            settled.setdefault(one.queue, []).append(self.leased[one.queue, one.place])
        self.model.settle(client, "ack", self.model.held[client][:count], self.clock.ms)
        rows, payload = b"", b""
        for queue, number in zip(targets, self.fresh(len(targets)), strict=True):
            message = Message(address_of("", queue), b"%d" % number)
            self.model.publish(queue, [number], self.clock.ms)
            record, route = encode(message), self.rig.router.resolve(message.address)
            rows += ROW.pack(route.queues[0], len(payload), len(record), 0, 0, 0, 0, 0)
            for named in route.named(message):
                rows += ROW.pack(named, len(payload), len(record), ROW_EXTRA, 0, 0, 0, 0)
            payload += record
        work = [(self.queue(name).number, offsets) for name, offsets in settled.items()]
        if not work and not targets:
            return lambda: asyncio.sleep(0)
        return lambda: self.store.leases.commit(self.conns[client].id, work, rows, payload)

    async def tick(self, ms: int) -> Work:
        """Lets time pass, and looks after all queues."""
        self.clock.ms += ms
        self.rig.now_ms = self.clock.ms
        return self.rest_of()

    async def get(self, client: int, queue: str) -> Work:
        """Leases one message to a client."""
        got = await self.rig.request(self.conns[client], GetMessage(queue=queue))
        ready = self.model.ready[queue]
        assert (got is None) == (not ready), queue
        if got is not None:
            place, entry = ready.pop(0)
            assert int(got.leased.messages[0].body) == entry.number
            self.leased[queue, place] = got.leased.offsets[0]
            self.model.held[client].append(Held(queue, place, entry))
        return lambda: asyncio.sleep(0)

    async def lose(self, client: int) -> Work:
        """Ends a connection."""
        conn, self.conns[client] = self.conns[client], self.rig.conn()
        self.model.lose(client)
        return lambda: self.rig.lose(conn)

    async def damage(self, queue: str, nth: int) -> Work:
        """Damages the frame of a message of a queue, waiting or held."""
        entries = self.model.entries()
        if numbers := [entry.number for name, entry in entries if name == queue]:
            frames = await self.frames()
            hurt = frames[queue, numbers[nth % len(numbers)]]
            flip_frame(self.home / f"store{self.lives}", hurt, HEADER.size + 3)
            for name, entry in entries:
                entry.lost = frames[name, entry.number].start == hurt.start
        return lambda: asyncio.sleep(0)

    async def frames(self) -> dict[tuple[str, int], Frame]:
        """Returns the newest frame of each message that can be read, by queue and message."""
        found = {}
        for name in QUEUES:
            at = QueueOffset(0)
            while True:
                try:
                    fetched = await self.store.queues.fetch(self.queue(name).number, at, max_bytes=1 << 20)
                except CorruptFrame as damaged:
                    at = QueueOffset(damaged.next or 1 << 62)
                    continue
                for frame, rows in zip(fetched.frames, fetched.rows, strict=True):
                    found.update({(name, int(decode(frame.record(row)).body)): frame for row in rows})
                if fetched.next == at:
                    break
                at = fetched.next
        return found

    def chosen(self, client: int, count: int) -> list[Held]:
        held = self.model.held[client]
        return [one for one in held if one.queue == held[0].queue][:count]

    def fresh(self, count: int) -> list[int]:
        self.published += count
        return list(range(self.published - count + 1, self.published + 1))

    def rest_of(self) -> Work:
        """Looks after all queues until nothing changes, by the model's account; returns the same for the gateway."""
        rounds = 0
        before = None
        while before != (before := self.model.numbers()):
            rounds += 1
            for name in QUEUES:
                self.model.trim(name, self.clock.ms)

        async def rest() -> None:
            for _ in range(rounds):
                for name in QUEUES:
                    await self.queue(name).pump.head.trim(OWNER)

        return rest

    # ---- what there is

    async def numbers(self) -> dict[str, list[int]]:
        """Returns the messages that wait in each queue, in the order of delivery."""
        found = {}
        for name in QUEUES:
            number = self.queue(name).number
            leases = await self.store.leases.take(number, OWNER, max_count=1_000)
            found[name] = [int(one.body) for one in read(leases, now_ms=0, rules=NO_RULES).messages]
            self.store.leases.requeue(number, OWNER, [one.offset for one in leases], delivered=False)
            self.model.skip(name, len(self.model.ready[name]))
        return found

    async def step(self, name: str, *arguments: Any) -> None:
        for work in (await getattr(self, name)(*arguments), self.rest_of()):
            await work()
        self.model.passed.clear()
        if name != "damage":  # looking would have the store skip all that is lost, and the next step would meet none
            assert await self.numbers() == self.model.numbers()
            assert self.store.messages_lost + self.rig.queues.keeper.lost.count == self.model.skipped

    async def crash(self, turns: int, name: str, *arguments: Any) -> None:
        """Kills the process within a step: each of the step's frames is stored whole, or not at all."""
        allowed = [self.model.crashed()]
        self.model.passed.clear()
        work = await getattr(self, name)(*arguments)
        allowed += [*self.model.passed, self.model.crashed()]
        task = asyncio.ensure_future(work())
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.done():
            del allowed[:-1]  # it was told to be done
        old, self.lives = self.home / f"store{self.lives}", self.lives + 1
        copy = (
            self.home / f"store{self.lives}"
        )  # the log last: the store writes on, and the file `floor` is never ahead of it
        shutil.copytree(old, copy, ignore=lambda folder, names: {*DERIVED(folder, names), "log"})
        shutil.copytree(old / "log", copy / "log")
        await asyncio.gather(task, return_exceptions=True)
        await self.close()
        shutil.rmtree(old)
        await self.open()
        found = await self.numbers()
        same = [one for one in allowed if one.numbers() == found]
        assert same, (found, [one.numbers() for one in allowed])
        self.model = same[-1]
        await self.rest_of()()
        self.model.passed.clear()
        assert await self.numbers() == self.model.numbers()


client, queue = st.sampled_from(CLIENTS), st.sampled_from(list(QUEUES))
EXPIRES = st.sampled_from([None, None, 0, 30, 200])
PUBLISH = st.tuples(st.just("publish"), queue, st.integers(1, 5), EXPIRES)
SETTLE = st.tuples(st.just("settle"), client, st.sampled_from(["ack", "reject", "requeue"]), st.integers(1, 4))
COMMIT = st.tuples(st.just("commit"), client, st.integers(0, 4), st.lists(queue, max_size=4))
TICK = st.tuples(st.just("tick"), st.sampled_from([1, 50, 100, 300]))
CRASH = st.builds(lambda turns, step: ("crash", turns, *step), st.integers(0, 60), PUBLISH | SETTLE | COMMIT | TICK)
GET = st.tuples(st.just("get"), client, queue)
LOSE = st.tuples(st.just("lose"), client)
STEPS = st.lists(PUBLISH | GET | GET | SETTLE | COMMIT | TICK | CRASH | LOSE, max_size=25)
DAMAGE = st.tuples(st.just("damage"), queue, st.integers(0, 5))
DAMAGED = st.builds(  # of several frames in a queue the first one or another, before all that is behind them expires
    lambda name, counts, nth, wait_ms: [
        *(("publish", name, count, None) for count in counts),
        ("damage", name, nth),
        ("tick", wait_ms),
    ],
    st.sampled_from(["brief", "dead", "least", "short"]),
    st.lists(st.integers(1, 2), min_size=2, max_size=4),
    st.sampled_from([0, 0, 1, 3]),
    st.sampled_from([1, 300, 300]),
)
DAMAGING = st.lists(
    DAMAGED | st.lists(PUBLISH | DAMAGE | GET | SETTLE | COMMIT | TICK | TICK | LOSE, min_size=1, max_size=5),
    max_size=6,
)


async def live(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        world = LeavingWorld(Path(home))
        await world.begin()
        try:
            for name, *arguments in steps:
                await (world.crash(*arguments) if name == "crash" else world.step(name, *arguments))
        finally:
            await world.close()
            await world.controller.close()


@settings(max_examples=examples(25), deadline=None)
@given(STEPS)
def test_what_leaves_a_queue_goes_where_rabbitmq_has_it_go(steps):
    asyncio.run(live(steps))


@settings(max_examples=examples(25), deadline=None)
@given(DAMAGING)
def test_lost_messages_hold_up_none_behind_them(steps):
    """Without crashes: what damage takes of settlements is another matter."""
    asyncio.run(live([step for some in steps for step in some]))
