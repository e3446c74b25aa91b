"""Any sequence of what AMQP clients do, on a store that now and then refuses, against a model of sets and lists.

Every confirmed message is delivered by every queue that was bound when it was published, as long as somebody there can
take it; again until it is acknowledged, never after that; and first deliveries of a queue keep the order of publishing,
those of each priority where the queue has some.
"""

import asyncio
import contextlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pamqp.commands import Basic, Channel, Connection, Queue

from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import Call, Cancel, Consume, Effect, Leased, Outcome, Publish, Ready, SettleLeased
from store.api.log import Appended
from store.api.message import Message, encode
from store.base.errors import StoreError, StoreOverloaded
from store.format.frame import ROW, ROW_EXTRA, UnplacedFrame
from store.local.local import LocalStore
from tests.support.amqp.amqp_peer import Peer
from tests.support.gateway.asking import ask
from tests.support.gateway.queues_rig import QueuesRig, settle
from tests.support.process.examples import examples

CLIENTS, QUEUES, KEYS = range(3), ("a", "b", "own"), ("k", "l")
PRIORITIZED = "b"
PRIORITIES, PRIORITY_MAX = 4, 2  # messages have one of so many; one queue knows them up to that
PATIENCE_S = 60
REFUSED = (
    "leases.settle",
    "leases.settle_soon",
    "leases.take",
    "keys.put",
    "keys.delete",
    "queues.delete",
    "leases.waiting",
)


class DeliveriesModel:
    """The messages that a queue has to deliver, and has delivered."""

    def __init__(self) -> None:
        self.keys: set[str] = set()  # of its bindings
        self.expected: list[int] = []
        self.done: set[int] = set()  # acknowledged or rejected, and the store has it
        self.held: dict[int, Any] = {}  # unacknowledged, by whom
        self.settling: list[int] = []  # acknowledged, in the hands of the store
        self.newest: dict[int, int] = {}  # of first deliveries, by priority

    @property
    def pending(self) -> list[int]:
        return [n for n in self.expected if n not in self.done and n not in self.held]


class AmqpClient:
    """A client with one confirming channel. The world is its gateway."""

    def __init__(self, world: "AmqpWorld") -> None:
        self.world = world
        world.ids += 1
        self.id = world.ids
        self.gone = False
        self.principal = Principal(name="guest")
        self.peer = Peer().open().confirming()
        self.tags: dict[int, tuple[DeliveriesModel, int]] = {}  # unacknowledged: queue and message, by delivery tag
        self.broken = False

    # ---- the shell

    def deliver(self, offer: Any) -> int:
        if self.gone:
            return 0
        taken = self.peer.conn.deliver(offer, now_ms=self.peer.now_ms)
        if isinstance(offer, Leased):
            self.read()
        return taken

    async def send(self, *methods: Any) -> None:
        await self.act(self.peer.send(*methods, channel=1))
        self.read()

    async def act(self, effects: Any) -> None:
        for effect in effects:
            more = await self.carry_out(effect)
            if more is not None and not self.gone:
                await self.act(self.peer.conn.completed(effect.token, more, now_ms=self.peer.now_ms))

    async def carry_out(self, effect: Effect) -> Outcome | None:
        queues = self.world.rig.queues
        match effect:
            case Publish():
                return await self.world.publish(effect.messages)
            case Ready():
                queues.ready(self, effect)
            case Cancel():
                queues.cancel(self, effect)
            case SettleLeased():
                try:
                    await settle(queues, self, effect)
                except StoreError:
                    pass  # they will come again
                else:
                    for model in self.world.models.values():
                        model.done.update(model.settling)
                for model in self.world.models.values():
                    model.settling.clear()
            case Consume():
                with contextlib.suppress(StoreError):
                    try:
                        await queues.consume(self, effect)
                    except Refusal as refusal:
                        return Outcome(error=refusal)
                return Outcome()
            case Call():
                try:
                    return Outcome(value=await ask(self, effect.request, queues=queues))
                except Refusal as refusal:
                    return Outcome(error=refusal)
        return None

    # ---- the client

    def read(self) -> None:
        """Reads what has come: deliveries are a method, a header and a body."""
        deliver: Any = None
        for frame in self.peer.methods():
            match frame:
                case Basic.Deliver():
                    deliver = frame
                case Channel.Close() | Connection.Close():
                    self.broken = True
                case _ if deliver is not None and hasattr(frame, "value"):
                    queue, number = deliver.consumer_tag.partition("#")[0], int(frame.value)
                    self.tags[deliver.delivery_tag] = self.world.models[queue], number
                    self.world.delivered(self, queue, number, redelivered=deliver.redelivered)
                    deliver = None

    @property
    def hungry(self) -> set[str]:
        """Queues it could take messages of."""
        channel = self.peer.conn.channels.get(1)
        return set() if channel is None or self.gone else {c.queue for c in channel.consumers.values() if c.credit}

    async def settle(self, method: Any, tags: list[int], *, gone: bool) -> None:
        """Acknowledges (`gone`) or gives back the messages with these delivery tags."""
        for tag in tags:
            model, number = self.tags.pop(tag)
            del model.held[number]
            if gone:
                model.settling.append(number)
        await self.send(method)

    async def lose(self) -> None:
        """Ends the connection, and opens another one like it."""
        self.gone = True
        for model, number in self.tags.values():
            del model.held[number]
        if self.world.owner is self:
            self.world.models.pop("own", None)
            self.world.owner = None
        await self.world.rig.queues.connection_lost(self)
        clients = self.world.clients
        clients[clients.index(self)] = AmqpClient(self.world)


class AmqpWorld:
    """All clients, the rig, and what should be."""

    def __init__(self, rig: QueuesRig) -> None:
        self.rig = rig
        self.ids = 0
        self.published = 0
        self.consumers = 0
        self.refusals = 0  # store calls that will be refused
        self.models: dict[str, DeliveriesModel] = {}
        self.owner: AmqpClient | None = None  # of the exclusive queue
        self.clients = [AmqpClient(self) for _ in CLIENTS]
        for call in REFUSED:
            subject, name = call.split(".")
            of = getattr(rig.store, subject)
            setattr(of, name, self.refusing(call, getattr(of, name)))

    def refusing(self, name: str, method: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.refusals:
                self.refusals -= 1
                if name in {
                    "leases.settle",
                    "leases.settle_soon",
                }:  # these messages are leased again
                    self.rig.store.leases.requeue(*args)
                raise StoreOverloaded("no room")
            return await method(*args, **kwargs)

        def call_at_once(*args: Any) -> Any:
            return asyncio.ensure_future(call(*args)) if self.refusals else method(*args)

        return call_at_once if name == "leases.settle_soon" else call

    async def publish(self, messages: Any) -> Outcome:
        if self.refusals:
            self.refusals -= 1
            return Outcome(error=Refusal(Cause.OVERLOAD, "no room"))
        router, rows, payload, found = self.rig.router, b"", b"", {}
        for message in messages:
            assert isinstance(message, Message)
            record = encode(message)
            rows += ROW.pack(router.resolve(message.address).queues[0], len(payload), len(record), 0, 0, 0, 0, 0)
            for queue in router.named_queues(message):
                rows += ROW.pack(queue, len(payload), len(record), ROW_EXTRA, 0, 0, 0, 0)
                found[queue] = None
            payload += record
        for message in messages:  # a pump that looks just now may deliver a message before its publisher hears of it
            key = message.address.rpartition("/")[2]
            for model in self.models.values():
                if key in model.keys:
                    model.expected.append(int(message.body))
        stored = asyncio.get_running_loop().create_future()
        self.rig.store.log.append(UnplacedFrame.build(rows, payload), stored.set_result)
        assert isinstance(await stored, Appended)
        self.rig.queues.appended(found)
        return Outcome()

    # ---- what comes back

    def delivered(self, client: AmqpClient, queue: str, number: int, *, redelivered: bool) -> None:
        model = self.models[queue]
        assert number in model.expected, f"{queue} was not bound when {number} was published, or it was refused"
        assert number not in model.done, f"{number} has been acknowledged"
        assert number not in model.held, f"{number} is somebody else's"
        if not redelivered:
            priority = min(number % PRIORITIES, PRIORITY_MAX) if queue == PRIORITIZED else 0
            newest = model.newest.get(priority, -1)
            assert number > newest, f"{number} comes for the first time, after {newest}"
            model.newest[priority] = number
        model.held[number] = client

    # ---- rest

    async def rest(self) -> None:
        """Waits until all that a client can take was taken, as the queues promise."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self.missing():
                    await asyncio.sleep(0.0005)
        assert not self.missing()
        for client in list(self.clients):
            if client.broken:
                await client.lose()

    def missing(self) -> dict[str, list[int]]:
        hungry = {queue for client in self.clients for queue in client.hungry}
        return {name: m.pending for name, m in self.models.items() if m.pending and name in hungry}

    # ---- steps

    async def declare(self, client: AmqpClient, queue: str) -> None:
        known = queue in self.models
        arguments = {"x-max-priority": PRIORITY_MAX} if queue == PRIORITIZED else {}
        declare = Queue.Declare(queue=queue, durable=queue == "a", exclusive=queue == "own", arguments=arguments)
        await client.send(declare)
        if not client.broken and not known:
            self.models[queue] = DeliveriesModel()
            self.models[queue].keys.add(queue)  # by the default exchange
            self.owner = client if queue == "own" else self.owner

    async def bind(self, client: AmqpClient, queue: str, key: str) -> None:
        await client.send(Queue.Bind(queue=queue, exchange="amq.direct", routing_key=key))
        if not client.broken:
            assert queue in self.models
            self.models[queue].keys.add(key)

    async def delete(self, client: AmqpClient, queue: str) -> None:
        await client.send(Queue.Delete(queue=queue))
        if not client.broken:
            self.models.pop(queue, None)

    async def publish_some(self, client: AmqpClient, key: str, count: int) -> None:
        for _ in range(count):
            self.published += 1
            exchange = "amq.direct" if key in KEYS else ""
            client.peer.feed(b"")
            priority = self.published % PRIORITIES
            await client.act(client.peer.publish(exchange, key, b"%d" % self.published, priority=priority))
            client.read()

    async def consume(self, client: AmqpClient, queue: str, prefetch: int) -> None:
        self.consumers += 1
        await client.send(Basic.Qos(prefetch_count=prefetch))
        await client.send(Basic.Consume(queue=queue, consumer_tag=f"{queue}#{self.consumers}"))

    async def cancel(self, client: AmqpClient, which: int) -> None:
        channel = client.peer.conn.channels.get(1)
        if channel is not None and channel.consumers:
            tags = sorted(channel.consumers)
            await client.send(Basic.Cancel(consumer_tag=tags[which % len(tags)]))

    async def settle(self, client: AmqpClient, how: str, which: int, *, multiple: bool) -> None:
        if not client.tags:
            return
        tags = sorted(client.tags)
        tag = tags[which % len(tags)]
        chosen = [t for t in tags if t <= tag] if multiple else [tag]
        methods = {
            "ack": Basic.Ack(delivery_tag=tag, multiple=multiple),
            "reject": Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=False),
            "requeue": Basic.Nack(delivery_tag=tag, multiple=multiple, requeue=True),
        }
        await client.settle(methods[how], chosen, gone=how != "requeue")

    async def finish(self) -> None:
        """Heals the store, ends all consumers, and takes all that is left."""
        self.refusals = 0
        for client in list(self.clients):
            await client.lose()
        last = self.clients[0]
        for queue in self.models:
            await last.send(Basic.Consume(queue=queue, consumer_tag=f"{queue}#last"))
        await self.rest()
        assert not last.broken
        for model in self.models.values():
            assert set(model.expected) == model.done | set(model.held)


client, queue, key = st.sampled_from(CLIENTS), st.sampled_from(QUEUES), st.sampled_from(KEYS)
STEP = st.one_of(
    st.tuples(st.just("declare"), client, queue),
    st.tuples(st.just("bind"), client, queue, key),
    st.tuples(st.just("publish_some"), client, st.sampled_from([*QUEUES, *KEYS]), st.integers(1, 5)),
    st.tuples(st.just("publish_some"), client, st.sampled_from([*QUEUES, *KEYS]), st.integers(1, 5)),
    st.tuples(st.just("consume"), client, queue, st.sampled_from([0, 1, 2, 5])),
    st.tuples(st.just("settle"), client, st.sampled_from(["ack", "reject", "requeue"]), st.integers(0, 9)),
    st.tuples(st.just("settle"), client, st.sampled_from(["ack", "reject", "requeue"]), st.integers(0, 9)),
    st.tuples(st.just("cancel"), client, st.integers(0, 3)),
    st.tuples(st.just("delete"), client, queue),
    st.tuples(st.just("lose"), client),
    st.tuples(st.just("refuse"), st.integers(1, 6)),
)


async def live(steps: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as home:
        store = await LocalStore.open(Path(home) / "store")
        controller = LocalController.open(Path(home) / "controller", now_ms=lambda: 0)
        await controller.do(CreateTopic(name="$amqp", queues=1))
        rig = QueuesRig(store, controller)
        await rig.queues.load()
        try:
            world = AmqpWorld(rig)
            for client in CLIENTS[:2]:  # each client needs a queue to begin with
                await world.declare(world.clients[client], QUEUES[client])
                await world.bind(world.clients[client], QUEUES[client], "k")
            for step, *arguments in steps:
                await one(world, step, *arguments)
                await world.rest()
            await world.finish()
        finally:
            await rig.queues.close()
            await controller.close()
            await store.close()


async def one(world: AmqpWorld, step: str, *arguments: Any) -> None:
    if step == "refuse":
        world.refusals += arguments[0]
        return
    client = world.clients[arguments[0]]
    if step == "lose":
        await client.lose()
    elif step == "settle":
        await world.settle(client, *arguments[1:], multiple=arguments[-1] % 2 == 1)
    else:
        await getattr(world, step)(client, *arguments[1:])


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr("gateway.queues.leasing.pump.RETRY_S", 0.001)
    monkeypatch.setattr("gateway.queues.queues.FINISH_S", 0.001)
    monkeypatch.setattr("gateway.queues.queues.FINISH_MAX_S", 0.005)


@pytest.mark.usefixtures("hasty")
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, max_size=40))
def test_queues_keep_their_promises(steps):
    asyncio.run(live(steps))
