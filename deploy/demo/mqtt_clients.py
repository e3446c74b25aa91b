"""Devices on MQTT 3.1.1 and 5 at QoS 0, 1 and 2, and one durable session that goes away and comes back (paho-mqtt)."""

import asyncio
import itertools
import threading
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from deploy.demo.fleet import Fleet
from deploy.demo.plan import DEVICES, TOPIC, Reading
from deploy.demo.session_seen import SessionSeen

WINDOW = 500  # messages of one device that wait for their acknowledgement
CONNECT_S, DRAIN_S = 15.0, 30.0
AWAY_EVERY_S, AWAY_S = 15.0, 2.0


class Device:
    """One MQTT connection that publishes at one QoS."""

    def __init__(self, fleet: Fleet, index: int) -> None:
        self.qos = index % 3
        self._fleet = fleet
        self._waiting = 0
        self._changed = threading.Condition()
        version = mqtt.MQTTv5 if index < DEVICES // 2 else mqtt.MQTTv311
        self.client = _client(f"{fleet.run}-device-{index + 1}", version)
        self.client.max_inflight_messages_set(100)
        self.client.on_publish = self._published

    def publish(self, reading: Reading, qos: int | None = None) -> None:
        """Hands a message to paho's own thread."""
        with self._changed:
            self._waiting += 1
        self.client.publish(reading.address, reading.body, qos=self.qos if qos is None else qos)

    @property
    def full(self) -> bool:
        """Returns whether enough is in flight."""
        return self._waiting >= WINDOW

    def drained(self) -> bool:
        """Waits until nothing is in flight; returns whether that came to pass."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting == 0, DRAIN_S)

    def close(self) -> None:
        """Disconnects; messages still in flight may be in the log or not."""
        self.client.disconnect()
        self.client.loop_stop()
        self._fleet.count("unknown", self._waiting)

    def _published(self, _client: Any, _data: Any, _mid: int, code: Any, _properties: Any) -> None:
        """Counts a PUBACK or PUBCOMP; at QoS 0, what was written to the socket."""
        self._fleet.count("refused" if getattr(code, "is_failure", False) else "acked")
        with self._changed:
            self._waiting -= 1
            self._changed.notify_all()


async def run(fleet: Fleet) -> None:
    """Runs all devices and the subscriber."""
    devices = [Device(fleet, index) for index in range(DEVICES)]
    session = fleet.session_reader("MQTT 5 session")
    subscriber = asyncio.create_task(_subscribe(fleet, session, subscribed := asyncio.Event()))
    subscribed_or_failed = asyncio.create_task(subscribed.wait())
    await asyncio.wait({subscriber, subscribed_or_failed}, return_when=asyncio.FIRST_COMPLETED)
    subscribed_or_failed.cancel()
    if subscriber.done():
        subscriber.result()
    for device in devices:
        await _connect(device.client, fleet)
    turns = itertools.cycle(enumerate(devices))
    async for due in fleet.due():
        for index, device in itertools.islice(turns, due):
            if not device.full:
                device.publish(fleet.readings.take(index))
    for index, device in enumerate(devices):
        # At QoS 0 nothing is acknowledged; but a connection is read in order, so the acknowledgement of one more
        # message, at QoS 1, says that all before it have been taken in.
        device.publish(fleet.readings.take(index), qos=max(1, device.qos))
    await asyncio.gather(*(asyncio.to_thread(device.drained) for device in devices))
    for device in devices:
        await asyncio.to_thread(device.close)
    fleet.phase = "stopped"
    await subscriber


async def _subscribe(fleet: Fleet, seen: SessionSeen, subscribed: asyncio.Event) -> None:
    """Reads by a session with a cursor in the log, leaves now and then, and misses no message."""
    loop = asyncio.get_running_loop()
    client = _client(f"{fleet.run}-dashboard", mqtt.MQTTv5)
    client.on_message = lambda _client, _data, message: seen.add(bytes(message.payload))

    def granted(*_: Any) -> None:
        loop.call_soon_threadsafe(subscribed.set)

    client.on_subscribe = granted
    while True:
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 600
        await _connect(client, fleet, clean_start=not subscribed.is_set(), properties=session)
        if not subscribed.is_set():
            client.subscribe(f"{TOPIC}/#", qos=1)
        if await _within(AWAY_EVERY_S, fleet.end):
            break
        await asyncio.to_thread(_leave, client)
        seen.left()
        await _within(AWAY_S, fleet.stop)  # once the others have stopped it comes back and stays for the rest
        if fleet.stop.is_set():
            await _connect(client, fleet, clean_start=False, properties=session)
            await fleet.end.wait()
            break
    await asyncio.to_thread(_leave, client)


def _client(client_id: str, version: int) -> mqtt.Client:
    return mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version)


async def _connect(client: mqtt.Client, fleet: Fleet, **options: Any) -> None:
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[Any] = loop.create_future()

    def answered(_client: Any, _data: Any, _flags: Any, code: Any, _properties: Any) -> None:
        loop.call_soon_threadsafe(_resolve, connected, code)

    client.on_connect = answered
    await asyncio.to_thread(client.connect, fleet.target.host, fleet.target.mqtt, keepalive=30, **options)
    client.loop_start()
    async with asyncio.timeout(CONNECT_S):
        code = await connected
    if code.is_failure:
        raise ConnectionError(f"MQTT: the gateway refused the connection: {code}")


def _resolve(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _leave(client: mqtt.Client) -> None:
    client.disconnect()
    client.loop_stop()


async def _within(seconds: float, event: asyncio.Event) -> bool:
    """Waits for an event, but only so long; returns whether it came."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
