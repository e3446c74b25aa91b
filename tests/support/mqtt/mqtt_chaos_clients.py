"""MQTT clients whose sessions last: publishers of numbers, and subscribers that note what comes.

They keep what the specification says a client keeps (MQTT 5.0, 4.1): a publisher what is not acknowledged, to send it
again by the same identifier; a subscriber the identifiers of QoS 2 messages until their PUBREL (4.3.3, method B).
"""

import asyncio
import itertools
import queue
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from paho.mqtt import client as paho
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes

from adapters.mqtt.codec import Properties, decode, encode, read_fixed_header
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
from tests.support.mqtt.paho_client import properties

ROOT = "chaos"
WINDOW = 16  # packet identifiers of a publisher: few, so that each is used again soon
PADDING_MAX = 400  # bytes behind a number, so that connections are cut inside packets, too
CONNECT_TIMEOUT_S = 10.0
SLOW_S = 0.3  # how long at most a client thinks before it answers, when it does
FOREVER_S = 0xFFFFFFFF
BUSY = {3, 0x88, 0x89}  # a gateway that has only begun may say so: 3.1.1's and 5.0's codes
TAKEN_OVER = 0x8E
NOT_FOUND = 0x92

GONE = (OSError, EOFError, TimeoutError)
Topics = dict[str, int]


class Run(Protocol):
    """The run that clients are part of."""

    chance: random.Random
    said: Counter[str]
    slow: float  # how often clients think before they answer
    port: int  # of the relay

    def ends(self) -> Topics: ...

    def expect(self, fact: bool, else_violated: str) -> None: ...


class Link:
    """One connection of a client."""

    def __init__(self, version: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.version = version
        self._reader = reader
        self._writer = writer
        self._rest = b""

    def send(self, *packets: Packet) -> None:
        if not self._writer.transport.is_closing():
            self._writer.write(b"".join(encode(packet, self.version) for packet in packets))

    async def read(self) -> list[Packet]:
        """Returns the next packets: whole ones, perhaps none. Raises `EOFError` and `OSError`."""
        data = await self._reader.read(1 << 16)
        if not data:
            raise EOFError
        data, at, found = self._rest + data, 0, []
        while (frame := read_fixed_header(data, at)) is not None and frame.end <= len(data):
            found.append(decode(frame.first, data[frame.start : frame.end], self.version))
            at = frame.end
        self._rest = data[at:]
        return found

    def drop(self) -> None:
        self._writer.transport.abort()


class ChaosPeer:
    """A client identifier and its session, which lasts. One connection at a time is at work, `link`; during a takeover
    there is another, which is at work from its CONNACK on."""

    def __init__(self, run: Run, name: str, version: int) -> None:
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
        """Connects whenever the client has no connection and may have one."""
        while True:
            await self.online.wait()
            if self.link is None:
                await self.open()
            self._lost.clear()
            if self.link is not None:
                await self._lost.wait()
            await asyncio.sleep(self.run.chance.random() * 0.1)

    async def open(self) -> bool:
        """Opens a connection, beside another one if there is one, and returns whether it succeeded."""
        async with self._opening:
            link = None
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    link = Link(self.version, *await asyncio.open_connection("127.0.0.1", self.run.port))
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
        """Ends the connection until `online` is set again."""
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
        return Connect(version=self.version, client_id=self.name, clean=False, keep_alive_s=0, properties=expiry)

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
        """Reads the packets of a connection, as long as it is the client's present one."""
        try:
            while True:
                for packet in packets:
                    if isinstance(packet, Disconnect):
                        self.run.said[f"DISCONNECT {packet.code:#x}"] += 1
                        self.run.expect(packet.code == TAKEN_OVER, f"{self.name}: {packet}")
                    elif self.link is link:
                        self.heard(packet, link)
                packets = await link.read()
                if self.run.chance.random() < self.run.slow:
                    await asyncio.sleep(self.run.chance.random() * SLOW_S)
        except GONE:
            pass
        finally:
            link.drop()
            if self.link is link:
                self.link = None
                self._lost.set()

    def resume(self, link: Link) -> None:
        """Continues the session on a new connection."""

    def heard(self, packet: Packet, link: Link) -> None:
        """Handles a packet of the present connection."""


class ChaosPublisher(ChaosPeer):
    """Publishes numbers to `chaos/NAME/qos1` and `chaos/NAME/qos2`, whatever `qos` it has of them."""

    ordered = True

    def __init__(self, run: Run, name: str, version: int, qos: tuple[int, ...]) -> None:
        super().__init__(run, name, version)
        self.next: Topics = {f"{ROOT}/{name}/qos{one}": 0 for one in qos}
        self.acked: dict[str, list[int]] = {topic: [] for topic in self.next}
        self._sent: dict[int, Publish] = {}  # by identifier, in their order: neither PUBACK nor PUBREC has come
        self._released: dict[int, None] = {}  # awaiting PUBCOMP

    @property
    def idle(self) -> bool:
        return not self._sent and not self._released

    def publish(self, count: int) -> None:
        """Publishes up to this many messages, if there is a connection and identifiers are free."""
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
        """Sends again what is not acknowledged (MQTT-4.4.0-1)."""
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
    """The messages that a subscriber, or a group of them, has got."""

    def __init__(self, name: str, qos: int, *, shared: bool = False) -> None:
        self.name = name
        self.qos = qos
        self.shared = shared
        self.since: Topics | None = None  # the first numbers that were published behind the SUBACK
        self.numbers: dict[str, list[int]] = {}

    def add(self, topic: str, payload: bytes) -> None:
        self.numbers.setdefault(topic, []).append(int(payload))

    def missing(self, ends: Topics) -> dict[str, list[int]]:
        """Returns what has not come of what was published since the SUBACK."""
        since = self.since or {}
        wanted = {topic: set(range(since.get(topic, 0), end)) for topic, end in ends.items()}
        found = {topic: sorted(one.difference(self.numbers.get(topic, ()))) for topic, one in wanted.items()}
        return {topic: one for topic, one in found.items() if one}

    def wrong(self, unordered: set[str]) -> Iterator[str]:
        """Yields what should not have come, or not in this order."""
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


class Subscriber(ChaosPeer):
    """Subscribes to everything once, and keeps what has come in `received`."""

    def __init__(
        self, run: Run, name: str, version: int, received: Received, receive_maximum: int | None = None
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
        return Connect(version=5, client_id=self.name, clean=False, keep_alive_s=0, properties=known)


class Mended(paho.Client):
    """paho, but for one thing: when it connects a second time without a CONNACK in between, as it does while a gateway
    is starting, it forgets which messages have their PUBREC, and publishes them anew."""

    def _messages_reconnect_reset_out(self) -> None:
        for message in list(self._out_messages.values()):
            if message.state == MessageState.MQTT_MS_RESEND_PUBREL:
                message.state = MessageState.MQTT_MS_WAIT_FOR_PUBCOMP
        super()._messages_reconnect_reset_out()


class Paho:
    """A client that nobody here wrote, on a thread of its own: what it keeps in memory outlives its connections."""

    def __init__(self, run: Run, name: str, version: int) -> None:
        self.run = run
        self.name = name
        self.known = False
        self.connections = 0
        v5 = version == 5
        clean: dict[str, bool] = {} if v5 else {"clean_session": False}
        self.paho = Mended(CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv5 if v5 else paho.MQTTv311, **clean)
        self.paho.reconnect_delay_set(0.05, 0.2)
        self.paho.on_connect = self._connected
        start = {"clean_start": False, "properties": properties(PacketTypes.CONNECT, SessionExpiryInterval=FOREVER_S)}
        self.paho.connect_async("127.0.0.1", run.port, **(start if v5 else {}))

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
        """Begins to work on a new connection."""


class PahoPublisher(Paho):
    ordered = False  # messages given to it between a CONNECT and its CONNACK leave before those that it sends again

    def __init__(self, run: Run, name: str, version: int, qos: tuple[int, ...]) -> None:
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

    def __init__(self, run: Run, name: str, version: int, received: Received) -> None:
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
