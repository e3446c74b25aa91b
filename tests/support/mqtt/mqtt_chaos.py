"""MQTT clients at work while connections are cut inside packets and taken over, and the gateway is killed."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Sequence

import numpy as np

from store.api.message import decode
from store.remoting.reader import RemoteReader
from tests.support.mqtt.mqtt_chaos_clients import (
    ROOT,
    ChaosPublisher,
    PahoPublisher,
    PahoSubscriber,
    Received,
    Subscriber,
    Topics,
)
from tests.support.process.gateways import GatewayProcess
from tests.support.process.relay import Relay

CUT_AFTER_BYTES = (5_000, 60_000, 300_000)  # one of these on average, in each direction
STANDSTILL_S = 60.0  # healed, and for so long nothing has come: something is lost


class Cutter(Relay):
    """Resets each connection after so many bytes as chance says, wherever in a packet that is."""

    def __init__(self, port: int, chance: random.Random) -> None:
        super().__init__(port)
        self.cutting = True
        self.cuts = 0
        self._chance = chance

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        while self._tasks:
            self.cut()
            await asyncio.wait(list(self._tasks), timeout=1)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
        left = int(self._chance.expovariate(1 / self._chance.choice(CUT_AFTER_BYTES)))
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                await flowing.wait()
                if self.cutting and len(data) > left:
                    self.cuts += 1
                    writer.write(data[:left])
                    await writer.drain()
                    break
                left = max(left - len(data), 0)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


class ChaosRun:
    """Clients at work on a gateway, and what happens to them. `said` counts it, `violations` are what should not be."""

    def __init__(self, gateway: GatewayProcess, relay: Cutter, seed: int) -> None:
        self.gateway = gateway
        self.relay = relay
        self.port = relay.port
        self.seed = seed
        self.chance = random.Random(seed)
        self.slow = 0.1
        self.said: Counter[str] = Counter()
        self.violations: list[str] = []
        self.received = [
            Received("at-least-once-5", 1),
            Received("at-least-once-311", 1),
            Received("exactly-once-5", 2),
            Received("exactly-once-311", 2),
            Received("late", 2),
            Received("paho-1", 1),
            Received("paho-2", 2),
            Received("share", 1, shared=True),
        ]
        self._everything = {one.name: one for one in self.received}
        self.publishers: Sequence[ChaosPublisher | PahoPublisher] = ()
        self.peers: list[ChaosPublisher | Subscriber] = []
        self.pahos: list[PahoPublisher | PahoSubscriber] = []
        self._tasks: list[asyncio.Task[None]] = []

    # ---- clients

    def start(self) -> None:
        """Starts all clients but the late one."""
        got = self._everything
        self.peers = [
            ChaosPublisher(self, "p5-1", 5, (1,)),
            ChaosPublisher(self, "p5-2", 5, (2,)),
            ChaosPublisher(self, "p5-12", 5, (1, 2)),
            ChaosPublisher(self, "p311-1", 4, (1,)),
            ChaosPublisher(self, "p311-2", 4, (2,)),
            ChaosPublisher(self, "p311-12", 4, (1, 2)),
            Subscriber(self, "s5-1", 5, got["at-least-once-5"], 9),
            Subscriber(self, "s311-1", 4, got["at-least-once-311"]),
            Subscriber(self, "s5-2", 5, got["exactly-once-5"], 20),
            Subscriber(self, "s311-2", 4, got["exactly-once-311"]),
            Subscriber(self, "share-5", 5, got["share"], 30),
            Subscriber(self, "share-311", 4, got["share"]),
        ]
        writers = [PahoPublisher(self, "paho-p5", 5, (1, 2)), PahoPublisher(self, "paho-p311", 4, (1, 2))]
        self.publishers = [*(peer for peer in self.peers if isinstance(peer, ChaosPublisher)), *writers]
        readers = [
            PahoSubscriber(self, "paho-s311", 4, got["paho-1"]),
            PahoSubscriber(self, "paho-s5", 5, got["paho-2"]),
        ]
        self.pahos = [*writers, *readers]
        for one in self.pahos:
            one.start()
        self._tasks = [asyncio.create_task(peer.live()) for peer in self.peers]
        self._publishing = asyncio.create_task(self._publish())
        self._tasks.append(self._publishing)

    def start_late(self) -> None:
        """Starts one more subscriber, when many messages have been published."""
        self.peers.append(late := Subscriber(self, "s5-late", 5, self._everything["late"]))
        self._tasks.append(asyncio.create_task(late.live()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in (*self.peers, *self.pahos)))

    async def _publish(self) -> None:
        while True:
            for one in self.publishers:
                if self.chance.random() < 0.3:
                    one.publish(self.chance.randrange(1, 8))
            await asyncio.sleep(0.02)

    def ends(self) -> Topics:
        """Returns the next number of each topic."""
        return {topic: number for one in self.publishers for topic, number in one.next.items()}

    def expect(self, fact: bool, else_violated: str) -> None:
        if not fact:
            self.violations.append(else_violated)

    # ---- what happens

    async def hurt(self, seconds: float) -> None:
        """Makes events happen by chance for a time, each kind at least once."""
        first = [self._kill, self._take_over, self._go, self._cut]
        self.chance.shuffle(first)
        often = [self._kill, self._kill, self._cut, *[self._take_over] * 4, *[self._go] * 3]
        until = asyncio.get_running_loop().time() + seconds
        while first or asyncio.get_running_loop().time() < until:
            await (first.pop() if first else self.chance.choice(often))()
            await asyncio.sleep(self.chance.uniform(0.05, 0.5))

    async def _kill(self) -> None:
        """Kills the gateway, sometimes while clients are taken over, sometimes soon after the last kill."""
        self.said["kills"] += 1
        async with asyncio.TaskGroup() as both:
            if self.chance.random() < 0.5:
                both.create_task(self._take_over())
                await asyncio.sleep(self.chance.random() * 0.02)
            await asyncio.to_thread(self.gateway.kill)
            await asyncio.to_thread(self.gateway.start)
        await asyncio.sleep(self.chance.random() ** 2)

    async def _take_over(self) -> None:
        """Makes some clients connect a second time while their first connection lives."""
        while sum(peer.link is not None for peer in self.peers) < len(self.peers) / 2:
            await asyncio.sleep(0.02)
        some = [peer for peer in self.chance.sample(self.peers, 6) if peer.link is not None]
        opened = await asyncio.gather(*(peer.open() for peer in some))
        self.said["takeovers"] += sum(opened)

    async def _go(self) -> None:
        """Takes a subscriber away for a while, with or without a DISCONNECT."""
        peer = self.chance.choice([peer for peer in self.peers if isinstance(peer, Subscriber)])
        if peer.online.is_set():
            self.said["times away"] += 1
            peer.go(politely=self.chance.random() < 0.5)
            asyncio.get_running_loop().call_later(self.chance.uniform(0.2, 3.0), peer.online.set)

    async def _cut(self) -> None:
        self.said["all cut"] += 1
        self.relay.cut()

    # ---- what has come of it

    async def heal(self) -> None:
        """Brings all to rest: no connection is cut, nobody publishes, and every client is connected. Then all clients
        connect once more, and one more message is published, behind all that a session might repeat.
        """
        self.relay.cutting, self.slow = False, 0.0
        self._publishing.cancel()
        for peer in self.peers:
            peer.online.set()
        await self._rest("healed")
        for peer in self.peers:
            await peer.open()
        ends = self.ends()
        for one in self.publishers:
            while self.ends().items() & {(topic, ends[topic]) for topic in one.next}:
                one.publish(1)
                await asyncio.sleep(0.01)
        await self._rest("at the end")

    async def _rest(self, when: str) -> None:
        """Waits until every message has arrived, or none comes any more."""
        clock = asyncio.get_running_loop().time
        seen, since = -1, clock()
        while True:
            count = sum(map(len, (numbers for one in self.received for numbers in one.numbers.values())))
            busy = [one.name for one in (*self.peers, *self.pahos) if not one.idle]
            if count == seen and not busy and not any(one.missing(self.ends()) for one in self.received):
                return
            if count != seen:
                seen, since = count, clock()
            if clock() - since > STANDSTILL_S:
                lost = {one.name: some(one.missing(self.ends())) for one in self.received}
                raise AssertionError(f"seed {self.seed}, {when}: {busy} wait; not come: {lost}; {self.report()}")
            await asyncio.sleep(0.2)

    def check(self, log: dict[str, list[int]]) -> None:
        """Compares what clients have received with the log: each number by its address, in the log's order."""
        unordered = {topic for one in self.publishers if not one.ordered for topic in one.next}
        for one in self.publishers:
            for topic, end in one.next.items():
                in_log = Received("log", 2)
                in_log.numbers = {topic: log.get(topic, [])}
                lost = sorted(set(one.acked[topic]) - set(in_log.numbers[topic]))
                self.expect(not lost, f"{topic}: {len(lost)} were acknowledged and are not in the log: {lost[:5]}")
                unsaid = sorted(set(range(end)) - set(one.acked[topic]))
                self.expect(not unsaid, f"{topic}: {len(unsaid)} were never acknowledged: {unsaid[:5]}")
                self.violations += in_log.wrong(unordered)
        for received in self.received:
            lost_by = some(received.missing(self.ends()))
            self.expect(not lost_by, f"{received.name}: not come: {lost_by}")
            self.violations += received.wrong(unordered)
        assert not self.violations, f"seed {self.seed}: {self.violations[:20]}; {self.report()}"

    def report(self) -> str:
        """Returns the run's figures as text."""
        came = {one.name: sum(map(len, one.numbers.values())) for one in self.received}
        connections = sum(one.connections for one in (*self.peers, *self.pahos))
        return (
            f"seed {self.seed}: {sum(self.ends().values())} messages, {self.relay.cuts} cuts inside the stream, "
            f"{connections} connections, {dict(self.said)}, received {came}, {len(self.violations)} violations"
        )


def some(missing: dict[str, list[int]]) -> dict[str, tuple[int, list[int]]]:
    """Returns how many are missing, and the first of them."""
    return {topic: (len(numbers), numbers[:5]) for topic, numbers in missing.items()}


def in_the_log(gateway: GatewayProcess) -> dict[str, list[int]]:
    """Returns the numbers in the log by address, in the order of the log."""
    found: dict[str, list[int]] = {}
    with RemoteReader(f"{gateway.host}:{gateway.port('rpc')}") as reader:
        for queue, bounds in reader.bounds(reader.topics()[ROOT]).items():
            for frame, rows, _ in reader.fetch(queue, bounds.first, bounds.next):
                for row in np.asarray(rows).tolist():
                    message = decode(frame.record(row))
                    found.setdefault(message.address, []).append(int(message.body))
    return found
