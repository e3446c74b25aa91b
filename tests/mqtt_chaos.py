"""MQTT clients with sessions that last, while connections are cut in packets and taken over, and the gateway is killed.

The clients keep what the specification says a client keeps (MQTT 5.0, 4.1): a publisher what is not acknowledged, to
send it again by the same identifier; a subscriber the identifiers of QoS 2 messages until their PUBREL (4.3.3, B).
"""

import asyncio
import contextlib
import itertools
import queue
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from conftest import GatewayProcess
from paho.mqtt import client as paho
from paho.mqtt.packettypes import PacketTypes
from paho_client import properties
from relay import Relay

from adapters.mqtt.codec import Properties, decode, encode, peel
from adapters.mqtt.codec.packets import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    SubscriptionRequest,
)
from gateway.message import decode as message_of
from store.remote import RemoteReader

__all__ = ["ChaosRun", "Cutter", "in_the_log"]

ROOT = "chaos"
WINDOW = 16  # packet identifiers of a publisher: few, so that each is used again soon
PADDING_MAX = 400  # bytes behind a number, so that connections are cut inside packets, too
CUT_AFTER_BYTES = 60_000  # on average, in each direction
CONNECT_TIMEOUT_S = 10.0
STANDSTILL_S = 60.0  # healed, and for so long nothing has come: something is lost
FOREVER_S = 0xFFFFFFFF
BUSY = {3, 0x88, 0x89}  # a gateway that has only begun may say so: 3.1.1's and 5.0's codes
TAKEN_OVER = 0x8E
NOT_FOUND = 0x92

GONE = (OSError, EOFError, TimeoutError)
Topics = dict[str, int]


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

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = int(self._chance.expovariate(1 / CUT_AFTER_BYTES))
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.cutting and len(data) > left:
                    self.cuts += 1
                    writer.write(data[:left])
                    await writer.drain()
                    break
                left = max(left - len(data), 0)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


class Link:
    """One connection of a client."""

    def __init__(self, version: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.version = version
        self._reader = reader
        self._writer = writer
        self._rest = b""

    def send(self, *packets: Packet) -> None:
        self._writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def read(self) -> list[Packet]:
        """What comes next: whole packets, perhaps none. Raises `EOFError` and `OSError`."""
        data = await self._reader.read(1 << 16)
        if not data:
            raise EOFError
        data, at, found = self._rest + data, 0, []
        while (frame := peel(data, at)) is not None and frame.end <= len(data):
            found.append(decode(frame.first, data[frame.start : frame.end], self.version))
            at = frame.end
        self._rest = data[at:]
        return found

    def drop(self) -> None:
        self._writer.transport.abort()


class Peer:
    """A client identifier and its session, which lasts. One connection at a time is at work, `link`; during a takeover
    there is another, which is at work from its CONNACK on."""

    def __init__(self, run: "ChaosRun", name: str, version: int) -> None:
        self.run = run
        self.name = name
        self.version = version
        self.link: Link | None = None
        self.online = asyncio.Event()
        self.online.set()
        self.known = False  # a CONNACK has said that there is a session
        self.connections = 0
        self._opening = asyncio.Lock()
        self._lost = asyncio.Event()
        self._readers: set[asyncio.Task[None]] = set()

    async def live(self) -> None:
        """Connect whenever there is no connection and there may be one."""
        while True:
            await self.online.wait()
            if self.link is None:
                await self.open()
            self._lost.clear()
            if self.link is not None:
                await self._lost.wait()
            await asyncio.sleep(self.run.chance.random() * 0.1)

    async def open(self) -> bool:
        """Connect, beside a connection that there may be; whether that succeeded."""
        async with self._opening:
            link = None
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    link = Link(self.version, *await asyncio.open_connection("127.0.0.1", self.run.relay.port))
                    link.send(self._connect())
                    packets: list[Packet] = []
                    while not packets:
                        packets = await link.read()
                if not self._accepted(packets.pop(0)):
                    link.drop()
                    return False
            except GONE:
                if link is not None:
                    link.drop()
                return False
            self.link = link
            self.connections += 1
            self._readers.add(task := asyncio.create_task(self._read(link, packets)))
            task.add_done_callback(self._readers.discard)
            self.resume(link)
            return True

    def go(self, *, politely: bool) -> None:
        """End the connection until `online` is set again."""
        self.online.clear()
        if self.link is not None:
            if politely:
                self.link.send(Disconnect())
            self.link.drop()

    async def stop(self) -> None:
        if self.link is not None:
            self.link.drop()
        await asyncio.gather(*self._readers, return_exceptions=True)

    def _connect(self) -> Connect:
        expiry = Properties(session_expiry_s=FOREVER_S) if self.version == 5 else Properties()
        return Connect(version=self.version, client_id=self.name, clean=False, keep_alive_s=60, properties=expiry)

    def _accepted(self, packet: Packet) -> bool:
        assert isinstance(packet, Connack), packet
        if packet.code:
            self.run.said[f"CONNACK {packet.code}"] += 1
            self.run.expect(packet.code in BUSY, f"{self.name}: CONNACK {packet.code}")
            return False
        self.run.expect(packet.session_present or not self.known, f"{self.name}: the session is gone")
        self.known = True
        return True

    async def _read(self, link: Link, packets: list[Packet]) -> None:
        """Everything that a connection says, as long as it is the one at work."""
        told = False
        try:
            while True:
                if self.link is link:
                    for packet in packets:
                        self.heard(packet, link)
                if any(isinstance(packet, Disconnect) for packet in packets):
                    told = True
                    self._told(packets[-1], superseded=self.link is not link)
                packets = await link.read()
        except GONE:
            pass
        finally:
            link.drop()
            self.run.said["taken over and told"] += told and self.link is not link
            if self.link is link:
                self.link = None
                self._lost.set()

    def _told(self, packet: Packet, *, superseded: bool) -> None:
        """A DISCONNECT. Where we connect again while the gateway still believes in the old one it is of no matter."""
        assert isinstance(packet, Disconnect), packet
        taken_over = packet.code == TAKEN_OVER
        self.run.expect(taken_over or not superseded, f"{self.name}: DISCONNECT {packet.code:#x} of a takeover")
        self.run.expect(packet.code in {TAKEN_OVER, 0x8B}, f"{self.name}: DISCONNECT {packet.code:#x}")

    def resume(self, link: Link) -> None:
        """Go on where the session was."""

    def heard(self, packet: Packet, link: Link) -> None:
        """A packet of the connection at work."""


class Publisher(Peer):
    """Publishes numbers to `chaos/NAME/qos1` and `chaos/NAME/qos2`, whatever `qos` it has of them."""

    ordered = True

    def __init__(self, run: "ChaosRun", name: str, version: int, qos: tuple[int, ...]) -> None:
        super().__init__(run, name, version)
        self.next: Topics = {f"{ROOT}/{name}/qos{one}": 0 for one in qos}
        self.acked: dict[str, list[int]] = {topic: [] for topic in self.next}
        self._sent: dict[int, Publish] = {}  # by identifier, in their order: neither PUBACK nor PUBREC has come
        self._released: dict[int, None] = {}  # awaiting PUBCOMP

    @property
    def idle(self) -> bool:
        return not self._sent and not self._released

    def publish(self, count: int) -> None:
        """Up to so many messages more, if there is a connection and identifiers are free."""
        if self.link is None:
            return
        free = (n for n in range(1, WINDOW + 1) if n not in self._sent and n not in self._released)
        for packet_id in list(itertools.islice(free, count)):
            topic = self.run.chance.choice(list(self.next))
            payload = str(self.next[topic]).encode() + b" " * self.run.chance.randrange(PADDING_MAX)
            self.next[topic] += 1
            packet = Publish(topic=topic, payload=payload, qos=int(topic[-1]), packet_id=packet_id)
            self._sent[packet_id] = packet
            self.link.send(packet)

    def resume(self, link: Link) -> None:
        """What is not acknowledged is sent again (MQTT-4.4.0-1)."""
        link.send(*(again(packet) for packet in self._sent.values()))
        link.send(*(Pubrel(packet_id=packet_id) for packet_id in self._released))

    def heard(self, packet: Packet, link: Link) -> None:
        match packet:
            case Puback(packet_id=packet_id, code=code):
                self._acknowledged(packet_id, 1, code)
            case Pubrec(packet_id=packet_id, code=code):
                if packet_id not in self._released:
                    self._acknowledged(packet_id, 2, code)
                    self._released[packet_id] = None
                link.send(Pubrel(packet_id=packet_id))
            case Pubcomp(packet_id=packet_id, code=code):
                self.run.expect(code in {0, NOT_FOUND}, f"{self.name}: PUBCOMP {code:#x}")
                self.run.expect(packet_id in self._released, f"{self.name}: PUBCOMP of nothing")
                self._released.pop(packet_id, None)

    def _acknowledged(self, packet_id: int, qos: int, code: int) -> None:
        self.run.expect(code in {0, 0x10}, f"{self.name}: acknowledged with {code:#x}")
        packet = self._sent.pop(packet_id, None)
        if packet is None or packet.qos != qos:
            self.run.expect(False, f"{self.name}: acknowledged at QoS {qos}, but not sent: {packet_id}")
        else:
            self.acked[packet.topic].append(int(packet.payload))


def again(packet: Publish) -> Publish:
    return Publish(topic=packet.topic, payload=packet.payload, qos=packet.qos, dup=True, packet_id=packet.packet_id)


class Received:
    """What a subscriber, or a group of them, has got."""

    def __init__(self, name: str, qos: int, *, shared: bool = False) -> None:
        self.name = name
        self.qos = qos
        self.shared = shared
        self.since: Topics | None = None  # the first numbers that were published behind the SUBACK
        self.numbers: dict[str, list[int]] = {}

    def add(self, topic: str, payload: bytes) -> None:
        self.numbers.setdefault(topic, []).append(int(payload))

    def missing(self, ends: Topics) -> dict[str, list[int]]:
        """What has not come of what was published since the SUBACK."""
        since = self.since or {}
        wanted = {topic: set(range(since.get(topic, 0), end)) for topic, end in ends.items()}
        found = {topic: sorted(one.difference(self.numbers.get(topic, ()))) for topic, one in wanted.items()}
        return {topic: one for topic, one in found.items() if one}

    def wrong(self, unordered: set[str]) -> Iterator[str]:
        """What should not have come, or not in this order."""
        for topic, numbers in self.numbers.items():
            if self.qos == 2 and topic.endswith("qos2"):
                doubled = [number for number, count in Counter(numbers).items() if count > 1]
                if doubled:
                    yield f"{self.name}: {len(doubled)} of {topic} doubled: {doubled[:5]}"
            if not self.shared and topic not in unordered:
                first = list(dict.fromkeys(numbers))
                late = [b for a, b in itertools.pairwise(first) if b < a]
                if late:
                    yield f"{self.name}: {len(late)} of {topic} behind later ones: {late[:5]}"


class Subscriber(Peer):
    """Subscribes to everything once, and keeps what has come in `received`."""

    def __init__(
        self, run: "ChaosRun", name: str, version: int, received: Received, receive_maximum: int | None = None
    ) -> None:
        super().__init__(run, name, version)
        self.received = received
        self.subscribed = False
        self._receive_maximum = receive_maximum
        self._held: dict[int, tuple[str, bytes]] = {}  # QoS 2 messages that were not released

    @property
    def idle(self) -> bool:
        return not self._held

    def resume(self, link: Link) -> None:
        if not self.subscribed:
            pattern = f"$share/{self.received.name}/{ROOT}/#" if self.received.shared else f"{ROOT}/#"
            link.send(Subscribe(packet_id=1, requests=(SubscriptionRequest(pattern=pattern, qos=self.received.qos),)))

    def heard(self, packet: Packet, link: Link) -> None:
        match packet:
            case Publish(qos=1, packet_id=int(packet_id)):
                self.received.add(packet.topic, packet.payload)
                link.send(Puback(packet_id=packet_id))
            case Publish(qos=2, packet_id=int(packet_id)):
                known = self._held.get(packet_id)
                if known is None:
                    self._held[packet_id] = packet.topic, packet.payload
                    self.received.add(packet.topic, packet.payload)
                elif known != (packet.topic, packet.payload) or not packet.dup:
                    self.run.expect(False, f"{self.name}: identifier {packet_id} used again: {known}, {packet}")
                link.send(Pubrec(packet_id=packet_id))
            case Publish():
                self.run.expect(False, f"{self.name}: {packet}")
            case Pubrel(packet_id=packet_id):
                known = self._held.pop(packet_id, None)
                link.send(Pubcomp(packet_id=packet_id, code=NOT_FOUND if known is None and self.version == 5 else 0))
            case Suback(codes=codes):
                self.run.expect(codes == (self.received.qos,), f"{self.name}: SUBACK {codes}")
                self.subscribed = True
                if self.received.since is None:
                    self.received.since = self.run.ends()

    def _connect(self) -> Connect:
        connect = super()._connect()
        if self._receive_maximum is None:
            return connect
        known = Properties(session_expiry_s=FOREVER_S, receive_maximum=self._receive_maximum)
        return Connect(version=5, client_id=self.name, clean=False, keep_alive_s=60, properties=known)


class Paho:
    """A client that nobody here wrote, on a thread of its own: what it keeps in memory outlives its connections."""

    def __init__(self, run: "ChaosRun", name: str, version: int) -> None:
        self.run = run
        self.name = name
        self.known = False
        self.connections = 0
        v5 = version == 5
        clean: dict[str, bool] = {} if v5 else {"clean_session": False}
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5 if v5 else paho.MQTTv311, **clean
        )
        self.paho.reconnect_delay_set(0.05, 0.2)
        self.paho.on_connect = self._connected
        start = {"clean_start": False, "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=FOREVER_S)}
        self.paho.connect_async("127.0.0.1", run.relay.port, **(start if v5 else {}))

    def start(self) -> None:
        self.paho.loop_start()

    async def stop(self) -> None:
        self.paho.disconnect()
        await asyncio.to_thread(self.paho.loop_stop)

    def _connected(self, _client: paho.Client, _data: object, flags: paho.ConnectFlags, code: Any, _: object) -> None:
        if code.is_failure:
            self.run.said[f"CONNACK {code}"] += 1
            return
        self.run.expect(flags.session_present or not self.known, f"{self.name}: the session is gone")
        self.known = True
        self.connections += 1
        self.begin()

    def begin(self) -> None:
        """A connection is there."""


class PahoPublisher(Paho):
    ordered = False  # what it is given between a CONNECT and its CONNACK leaves before what it sends again

    def __init__(self, run: "ChaosRun", name: str, version: int, qos: tuple[int, ...]) -> None:
        self.next: Topics = {f"{ROOT}/{name}/qos{one}": 0 for one in qos}
        self.acked: dict[str, list[int]] = {topic: [] for topic in self.next}
        self._sent: dict[int, tuple[str, int]] = {}  # by paho's number, which is the packet identifier
        self._done: queue.SimpleQueue[int] = queue.SimpleQueue()
        super().__init__(run, name, version)
        self.paho.on_publish = lambda _c, _u, mid, _code, _p: self._done.put(mid)

    @property
    def idle(self) -> bool:
        while not self._done.empty():
            topic, number = self._sent.pop(self._done.get())
            self.acked[topic].append(number)
        return not self._sent

    def publish(self, count: int) -> None:
        if self.idle or len(self._sent) <= WINDOW:
            for _ in range(count):
                topic = self.run.chance.choice(list(self.next))
                number, self.next[topic] = self.next[topic], self.next[topic] + 1
                self._sent[self.paho.publish(topic, str(number), int(topic[-1])).mid] = topic, number


class PahoSubscriber(Paho):
    idle = True

    def __init__(self, run: "ChaosRun", name: str, version: int, received: Received) -> None:
        self.received = received
        super().__init__(run, name, version)
        self.paho.on_message = lambda _c, _u, message: received.add(message.topic, message.payload)
        self.paho.on_subscribe = self._subscribed

    def begin(self) -> None:
        if self.received.since is None:
            self.paho.subscribe(f"{ROOT}/#", self.received.qos)

    def _subscribed(self, _client: paho.Client, _data: object, _mid: int, codes: list[Any], _: object) -> None:
        self.run.expect([code.value for code in codes] == [self.received.qos], f"{self.name}: SUBACK {codes}")
        self.received.since = self.received.since or self.run.ends()


class ChaosRun:
    """Clients at work on a gateway, and what happens to them. `said` counts it, `violations` are what should not be."""

    def __init__(self, gateway: GatewayProcess, relay: Cutter, seed: int) -> None:
        self.gateway = gateway
        self.relay = relay
        self.seed = seed
        self.chance = random.Random(seed)
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
        self.publishers: Sequence[Publisher | PahoPublisher] = ()
        self.peers: list[Publisher | Subscriber] = []
        self.pahos: list[PahoPublisher | PahoSubscriber] = []
        self._tasks: list[asyncio.Task[None]] = []

    # ---- clients

    def start(self) -> None:
        """Let all clients work but the late one."""
        got = self._everything
        self.peers = [
            Publisher(self, "p5-1", 5, (1,)),
            Publisher(self, "p5-2", 5, (2,)),
            Publisher(self, "p5-12", 5, (1, 2)),
            Publisher(self, "p311-1", 4, (1,)),
            Publisher(self, "p311-2", 4, (2,)),
            Publisher(self, "p311-12", 4, (1, 2)),
            Subscriber(self, "s5-1", 5, got["at-least-once-5"], 9),
            Subscriber(self, "s311-1", 4, got["at-least-once-311"]),
            Subscriber(self, "s5-2", 5, got["exactly-once-5"], 20),
            Subscriber(self, "s311-2", 4, got["exactly-once-311"]),
            Subscriber(self, "share-5", 5, got["share"], 30),
            Subscriber(self, "share-311", 4, got["share"]),
        ]
        writers = [PahoPublisher(self, "paho-p5", 5, (1, 2)), PahoPublisher(self, "paho-p311", 4, (1, 2))]
        self.publishers = [*(peer for peer in self.peers if isinstance(peer, Publisher)), *writers]
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
        """One more subscriber, when much has been published."""
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
        """The next number of each topic."""
        return {topic: number for one in self.publishers for topic, number in one.next.items()}

    def expect(self, fact: bool, else_violated: str) -> None:
        if not fact:
            self.violations.append(else_violated)

    # ---- what happens

    async def hurt(self, seconds: float) -> None:
        """Let things happen by chance for a time, each kind at least once."""
        first = [self._kill, self._take_over, self._go, self._cut]
        self.chance.shuffle(first)
        often = [self._kill, self._cut, *[self._take_over] * 4, *[self._go] * 3]
        until = asyncio.get_running_loop().time() + seconds
        while first or asyncio.get_running_loop().time() < until:
            await (first.pop() if first else self.chance.choice(often))()
            await asyncio.sleep(self.chance.uniform(0.05, 0.5))

    async def _kill(self) -> None:
        self.said["kills"] += 1
        await asyncio.to_thread(self.gateway.kill)
        await asyncio.to_thread(self.gateway.start)
        await asyncio.sleep(self.chance.uniform(0.1, 1.0))  # that some get on

    async def _take_over(self) -> None:
        """Some clients connect a second time while their first connection lives."""
        some = [peer for peer in self.chance.sample(self.peers, 4) if peer.link is not None]
        opened = await asyncio.gather(*(peer.open() for peer in some))
        self.said["takeovers"] += sum(opened)

    async def _go(self) -> None:
        """A subscriber is away for a while, with or without saying so."""
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
        """Let everything come to rest: nothing is cut, nobody publishes, everybody is there. Then all connect
        once more, and something is published that comes behind all that a session might repeat."""
        self.relay.cutting = False
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
        """Wait until everything has arrived, or nothing comes any more."""
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
        """Compare what clients know with what is in the log: each number by its address, in the log's order."""
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
        """For people."""
        came = {one.name: sum(map(len, one.numbers.values())) for one in self.received}
        connections = sum(one.connections for one in (*self.peers, *self.pahos))
        return (
            f"seed {self.seed}: {sum(self.ends().values())} messages, {self.relay.cuts} cuts inside the stream, "
            f"{connections} connections, {dict(self.said)}, received {came}, {len(self.violations)} violations"
        )


def some(missing: dict[str, list[int]]) -> dict[str, tuple[int, list[int]]]:
    """How many, and which those are that begin."""
    return {topic: (len(numbers), numbers[:5]) for topic, numbers in missing.items()}


def in_the_log(gateway: GatewayProcess) -> dict[str, list[int]]:
    """The numbers in the log, by address, in the order of the log."""
    found: dict[str, list[int]] = {}
    with RemoteReader(f"{gateway.host}:{gateway.port('rpc')}") as reader:
        for queue, bounds in reader.bounds(reader.topics()[ROOT]).items():
            for frame, rows, _ in reader.fetch(queue, bounds.first, bounds.next):
                for row in np.asarray(rows).tolist():
                    message = message_of(frame.record(row))
                    found.setdefault(message.address, []).append(int(message.body))
    return found
