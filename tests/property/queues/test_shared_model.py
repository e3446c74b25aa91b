"""Any sequence of what members of a shared subscription do and suffer, over a real store.

Every message is received by some member; one of QoS 2 never twice by the same session, and, unless the gateway has
died, by one session alone; what was acknowledged is never delivered again.
"""

import asyncio
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.mqtt.codec.packets import (
    Connect,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from adapters.mqtt.codec.properties import Properties
from adapters.mqtt.messages.options import Options
from controller.api.commands import CreateTopic
from controller.node.local import LocalController
from gateway.ownership.owners import LocalOwners
from gateway.port.adapter import Call, Cancel, Close, Consume, Leased, Outcome, Ready, SettleLeased
from gateway.port.sessions import OpenedSession, SaveSession
from gateway.port.shared import JoinShared, LeaveShared
from gateway.queues.shared.subscriptions import SharedSubscriptions
from store.local.local import LocalStore
from tests.support.gateway.queues_rig import QueuesRig, settle
from tests.support.mqtt.mqtt_driver import Driver
from tests.support.process.examples import examples

SHARE = "$share/g/a"
NAMES = range(3)
PATIENCE_S = 60


class SharingClient:
    """One client identifier, its session, and what it has received."""

    def __init__(self, world: "SharingWorld", name: int, *, durable: bool) -> None:
        self.world = world
        self.name = name
        self.durable = durable
        self.state = self.exchanges = b""
        self.link: ClientLink | None = None
        self.member = False
        self.got: Counter[bytes] = Counter()
        self.acknowledged: set[bytes] = set()  # of QoS 1: never again
        self.done: set[bytes] = set()  # messages that it has sent PUBACK or PUBREC for
        self.unanswered: list[Publish | Pubrel] = []
        self.known: dict[int, bytes] = {}  # QoS 2 packet identifiers taken: what a client remembers

    def hear(self, packets: Any) -> None:
        for packet in packets:
            if isinstance(packet, Publish):
                assert packet.payload not in self.acknowledged
                if packet.qos == 2:
                    if packet.packet_id in self.known:
                        assert packet.dup
                        assert self.known[packet.packet_id] == packet.payload
                    else:
                        self.known[packet.packet_id] = packet.payload
                        self.got[packet.payload] += 1
                else:
                    self.got[packet.payload] += 1
                if packet.qos:
                    self.unanswered.append(packet)
            elif isinstance(packet, Pubrel):
                self.unanswered.append(packet)

    async def connect(self) -> None:
        if self.link is None:
            if not self.durable:
                self.known.clear()
            self.link = ClientLink(self)
            await self.link.open()

    async def subscribe(self, qos: int) -> None:
        if self.link is not None:
            request = SubscriptionRequest(pattern=SHARE, qos=qos)
            await self.link.send(Subscribe(packet_id=1, requests=(request,)))
            self.member = True

    async def unsubscribe(self) -> None:
        if self.link is not None and self.member and not self.unanswered:
            await self.link.send(Unsubscribe(packet_id=2, patterns=(SHARE,)))
            self.member = False

    async def answer(self, count: int) -> None:
        """Acknowledges the next messages."""
        link = self.link
        while link is not None and self.unanswered and count:
            count -= 1
            packet = self.unanswered.pop(0)
            if isinstance(packet, Publish):
                self.done.add(packet.payload)
            if isinstance(packet, Pubrel):
                self.known.pop(packet.packet_id, None)
                await link.send(Pubcomp(packet_id=packet.packet_id))
            elif packet.qos == 1:
                self.acknowledged.add(packet.payload)
                await link.send(Puback(packet_id=packet.packet_id))
            else:
                await link.send(Pubrec(packet_id=packet.packet_id))

    async def lose(self) -> None:
        """Cuts the connection; the gateway notices it."""
        link, self.link = self.link, None
        if link is not None:
            await link.lose()
            self.unanswered.clear()
            if not self.durable:
                self.state = self.exchanges = b""
                self.member = False
                self.world.rig_sessions.there.discard(link.session)
                await self.world.shared.ended(link.session, lasting=False)


class Sessions:
    """The sessions as shared subscriptions know them."""

    def __init__(self) -> None:
        self.there: set[str] = set()

    def key_of(self, conn: "ClientLink") -> str:
        return conn.session

    def holds(self, key: str) -> bool:
        return key in self.there


class ClientLink:
    """One connection, and the shell around its adapter."""

    def __init__(self, client: SharingClient) -> None:
        self.client = client
        self.world = client.world
        self.world.rig.conns += 1
        self.id = self.world.rig.conns
        self.session = f"s{client.name}"
        self.gone = False
        self.driver = Driver(5, Options())
        self.driver.saves = False
        self.saving: list[Call] = []
        self.busy = asyncio.Lock()

    async def open(self) -> None:
        client, driver = self.client, self.driver
        self.world.rig_sessions.there.add(self.session)
        present = client.durable and bool(client.state)
        driver.opened = Outcome(
            value=OpenedSession(present=present, state=client.state, exchanges=client.exchanges, cursor=())
        )
        expiry_s = 600 if client.durable else 0
        properties = Properties(session_expiry_s=expiry_s, receive_maximum=5)
        await self.send(Connect(version=5, client_id=self.session, clean=not client.durable, properties=properties))

    async def send(self, packet: Any) -> None:
        self.client.hear(self.driver.send(packet))
        await self.work()

    def deliver(self, offer: Any) -> int:
        if self.gone:
            return 0
        taken = int(self.driver.adapter.deliver(offer, now_ms=self.driver.now_ms))
        self.client.hear(self.driver.out())
        if isinstance(offer, Leased):
            self.world.wake(self)
        return taken

    async def work(self) -> None:
        """Carries out what the adapter asks for."""
        async with self.busy:
            while not self.gone:
                if self.driver.adapter.deadline_ms() == 0:
                    self.client.hear(self.driver.tick())
                if not self.driver.effects:
                    return
                await self.carry_out(self.driver.effects.pop(0))

    async def carry_out(self, effect: Any) -> None:
        queues, outcome = self.world.rig.queues, Outcome()
        match effect:
            case Call(request=SaveSession()):
                self.saving.append(effect)
                if self.world.holding:
                    return
                self.save()
                return
            case Call(request=JoinShared() as request):
                outcome = Outcome(value=await self.world.shared.join(self, request))
            case Call(request=LeaveShared() as request):
                await self.world.shared.leave(self, request)
            case Consume():
                await queues.consume(self, effect)
            case SettleLeased():
                if self.world.stalled:
                    return
                await settle(queues, self, effect)
                if effect.token is None:
                    return
            case Ready():
                queues.ready(self, effect)
                return
            case Cancel():
                queues.cancel(self, effect)
                return
            case Close():
                raise AssertionError(effect.reason)
            case _:
                return
        if not self.gone:
            self.client.hear(self.driver.complete(effect, outcome))

    def save(self) -> None:
        """Makes the oldest save in flight durable."""
        call = self.saving.pop(0)
        request = call.request
        assert isinstance(request, SaveSession)
        if request.exchanges is not None:
            self.client.exchanges = request.exchanges
        if request.state is not None:
            self.client.state = request.state
        if not self.gone:
            self.client.hear(self.driver.complete(call))

    async def lose(self) -> None:
        self.gone = True
        async with self.busy:
            self.driver.lose()
        for effect in self.driver.take(Call):
            if isinstance(effect.request, SaveSession):
                self.saving.append(effect)
        while self.saving:
            self.save()
        await self.world.rig.queues.connection_lost(self)
        self.world.shared.left(self)


class SharingWorld:
    """A gateway and its clients."""

    def __init__(self, rig: QueuesRig) -> None:
        self.rig = rig
        self.holding = False  # no saved state is durable yet
        self.crashed = False
        self.stalled = False  # it settles no message any more: it is about to crash
        self.published: dict[bytes, int] = {}  # QoS of what had members when it was published
        self.tasks: set[asyncio.Task[Any]] = set()
        self.rig_sessions = Sessions()
        self.clients = [SharingClient(self, name, durable=name != 2) for name in NAMES]
        self.begin()

    def begin(self) -> None:
        self.shared = SharedSubscriptions(
            self.rig.store,
            LocalOwners(self.rig.store),
            self.rig.queues.registry,
            self.rig_sessions,
            groups_max=10,
            spawn=self.spawn,
        )

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def wake(self, link: ClientLink) -> None:
        self.spawn(link.work())

    async def rest(self) -> None:
        """Waits until all have come to rest; what is offered and taken is quick."""
        for _ in range(3):
            while self.tasks:
                await asyncio.gather(*self.tasks)
            await asyncio.sleep(0.002)

    async def publish(self, qos: int, count: int) -> None:
        bodies = [b"%d" % (len(self.published) + n) for n in range(count)]
        if any(client.member for client in self.clients):
            await self.rig.publish_to("a", *bodies, qos=qos)
            self.published.update(dict.fromkeys(bodies, qos))
        await self.rest()

    async def hold(self, holding: bool) -> None:
        self.holding = holding
        for client in self.clients:
            while not holding and client.link is not None and client.link.saving:
                client.link.save()
                await client.link.work()

    async def die_between(self, count: int) -> None:
        """Crashes after messages were saved as sessions' own, and before they were settled."""
        self.stalled = True
        await self.publish(2, count)
        await self.crash()
        self.stalled = False

    async def crash(self) -> None:
        """Ends the gateway as kill -9 does: only what was durable stays."""
        self.crashed = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for client in self.clients:
            link, client.link = client.link, None
            client.unanswered.clear()
            if link is not None:
                link.gone = True
                self.rig.store.leases.release(link.id)
            if not client.durable:
                client.member, client.state, client.exchanges = False, b"", b""
        self.rig_sessions.there = {f"s{client.name}" for client in self.clients if client.durable and client.member}
        self.holding = False
        await self.rig.restart()
        self.begin()
        await self.shared.begin()

    async def finish(self) -> None:
        """Brings all clients back, and lets them acknowledge everything."""
        await self.hold(False)
        for client in self.clients:
            if client.member:
                await client.connect()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await self.rest()
                if any(client.unanswered for client in self.clients):
                    for client in self.clients:
                        await client.answer(100)
                elif await self.drained():
                    break

    async def drained(self) -> bool:
        leases = self.rig.store.leases
        numbers = [queue.number for queue in self.rig.queues.registry.shared]
        return not any([await leases.unsettled(number) for number in numbers])

    def check(self) -> None:
        received: Counter[bytes] = Counter()
        for client in self.clients:
            received += client.got
        assert {body for body, qos in self.published.items() if qos == 1} <= set().union(
            *(client.done for client in self.clients)
        )
        assert set(self.published) <= set(received)  # one of QoS 2 ends with the session that it was begun with
        for client in self.clients:
            if client.durable:
                assert [body for body, times in client.got.items() if self.published[body] == 2 and times > 1] == []
        if not self.crashed:
            twice = [body for body, times in received.items() if self.published[body] == 2 and times > 1]
            assert twice == []


STEPS = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from(NAMES)),
    st.tuples(st.just("subscribe"), st.sampled_from(NAMES), st.just(2)),
    st.tuples(st.just("answer"), st.sampled_from(NAMES), st.integers(1, 8)),
    st.tuples(st.just("lose"), st.sampled_from(NAMES)),
    st.tuples(st.just("publish"), st.sampled_from([1, 2]), st.integers(1, 8)),
    st.tuples(st.just("hold"), st.booleans()),
    st.tuples(st.just("crash")),
    st.tuples(st.just("die_between"), st.integers(1, 8)),
)


async def play(directory: Path, steps: list[tuple[Any, ...]]) -> None:
    store = await LocalStore.open(directory / "store")
    controller = LocalController.open(directory / "controller", now_ms=lambda: 0)
    for topic in ("$amqp", "a"):
        await controller.do(CreateTopic(name=topic, queues=1))
    rig = QueuesRig(store, controller)
    await rig.queues.load()
    world = SharingWorld(rig)
    try:
        first = world.clients[0]  # there is always a session that remembers
        await first.connect()
        await first.subscribe(2)
        await world.hold(False)
        for name, *arguments in steps:
            who, rest = (world, arguments)
            if name in {"connect", "subscribe", "answer", "lose"}:
                who, rest = world.clients[arguments[0]], arguments[1:]
            async with asyncio.timeout(PATIENCE_S):
                await getattr(who, name)(*rest)
        await world.finish()
        world.check()
    finally:
        for task in world.tasks:
            task.cancel()
        await asyncio.gather(*world.tasks, return_exceptions=True)
        await rig.queues.close()
        await controller.close()
        await store.close()


@example([("hold", True), ("publish", 2, 3), ("lose", 0), ("hold", False)], False)  # not saved: for others
@example([("die_between", 5)], True)  # saved, not settled: swallowed when it comes again
@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=30), st.booleans())
def test_nothing_is_lost_and_nothing_doubled_within_a_session(steps, crashes):
    steps = [step for step in steps if crashes or step[0] not in {"crash", "die_between"}]
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(play(Path(directory), steps))
