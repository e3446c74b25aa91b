"""The part that the conformance tests of MQTT share: connections brought to where a statement begins to bind."""

from collections.abc import Sequence
from typing import Any

from adapters.mqtt.codec import Properties, encode
from adapters.mqtt.codec.packets import Connack, Connect, Disconnect, Packet, Subscribe, SubscriptionRequest
from adapters.mqtt.codec.primitives import encode_varint
from gateway.port.adapter import Effect, Outcome, Publish
from gateway.port.marks import Mark, Marks, OpenedMarks
from gateway.port.sessions import OpenedSession
from store.api.message import Message
from tests.support.mqtt.mqtt_driver import NOW_MS, Driver, batch_of

# Reason codes by the packet that may carry them (MQTT 5.0, 2.4); those that a client alone sends are left out.
CONNACK = {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}
PUBACK = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
PUBREC = PUBACK
PUBREL = PUBCOMP = {0x00, 0x92}
SUBACK = {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
UNSUBACK = {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}
DISCONNECT = {0x00, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3)}


def framed(first: int, body: bytes) -> bytes:
    """Returns a packet by its bytes."""
    return bytes((first,)) + encode_varint(len(body)) + body


def message(body: bytes = b"x", qos: int = 1, address: str = "t/a", device: str = "other", **fields: Any) -> Message:
    return Message(address, body, NOW_MS, "mqtt", device, qos, **fields)


def request(pattern: str = "t/#", qos: int = 2, **options: Any) -> SubscriptionRequest:
    return SubscriptionRequest(pattern=pattern, qos=qos, **options)


class Lasting(Driver):
    """A session that outlives its connections, and what the log has marked for it."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self.marks: dict[int, Marks] = {}
        self.opened = Outcome(value=OpenedSession(present=False, marks=OpenedMarks(key="k/", used=True)))

    def act(self, effects: Sequence[Effect]) -> None:
        self.marks.update((one.marks.slot, one.marks) for one in effects if isinstance(one, Publish) and one.marks)
        super().act(effects)


def connected(version: int = 5, *, options: Any = None, **connect: Any) -> Driver:
    """Returns a client that is connected."""
    driver = Driver(version, options)
    driver.connect(**connect)
    return driver


def subscribed(version: int = 5, *requests: SubscriptionRequest, ids: tuple[int, ...] = (), **connect: Any) -> Driver:
    """Returns a client with subscriptions 1, 2 and so on."""
    driver = connected(version, **connect)
    said = Properties(subscription_ids=ids)
    driver.send(Subscribe(packet_id=65_535, requests=requests or (request(),), properties=said))
    driver.effects.clear()
    return driver


def durable(version: int = 5, *requests: SubscriptionRequest, **connect: Any) -> Lasting:
    """Returns a client with subscriptions in a session that outlives the connection."""
    driver = Lasting(version)
    said = Properties(session_expiry_s=600) if version == 5 else Properties()
    driver.connect(**{"clean": False, "properties": said, **connect})
    driver.send(Subscribe(packet_id=65_535, requests=requests or (request(),)))
    driver.effects.clear()
    return driver


def opened(driver: Lasting) -> Outcome:
    """Returns what the gateway knows of a session."""
    state = next((one.state for one in reversed(driver.saved) if one.state is not None), b"")
    exchanges = next((one.exchanges for one in reversed(driver.saved) if one.exchanges is not None), b"")
    found = [Mark(slot, 0, raw, 1) for slot, marks in driver.marks.items() for raw in marks.of.values()]
    marks = OpenedMarks(key="k/", used=True, found=found)
    return Outcome(value=OpenedSession(present=True, state=state, exchanges=exchanges, cursor=(), marks=marks))


def again(driver: Lasting, **connect: Any) -> tuple[Lasting, list[Packet]]:
    """Resumes the session on another connection; returns it, and what it is sent behind the CONNACK."""
    other = Lasting(driver.version, driver.options, now_ms=driver.now_ms)
    other.saved, other.retained, other.opened = list(driver.saved), driver.retained, opened(driver)
    other.marks = driver.marks
    said = Properties(session_expiry_s=600) if driver.version == 5 else Properties()
    connect = {"client_id": "c1", "clean": False, "properties": said, **connect}
    connack, *rest = other.send(Connect(version=driver.version, **connect))
    assert isinstance(connack, Connack)
    assert connack.session_present
    return other, rest


def delivered(driver: Driver, *messages: Message, subs: Any = None, frame: int = 4096) -> list[Any]:
    """Delivers messages of the log, checks that all are taken, and returns what the client is sent."""
    assert driver.deliver(batch_of(*messages, frame=frame), subs) == len(messages)
    return driver.tick()  # a session that lasts saves QoS 2 before it sends


def refused(data: bytes, version: int = 5, **connect: Any) -> int:
    """Sends bytes of a connected client, and returns the code that ends the connection; nothing follows it."""
    driver = connected(version, **connect)
    return code_of_the_end(driver, data)


def code_of_the_end(driver: Driver, data: bytes) -> int:
    """Sends bytes that end a connection, and returns the code of its DISCONNECT; returns 0 where there is none."""
    driver.feed(data)
    out = driver.out()
    assert driver.closed is not None, "the connection goes on"
    driver.feed(b"\xc0\x00")
    assert driver.out() == []
    if not out:
        return 0
    (bye,) = out
    assert isinstance(bye, Disconnect)
    return bye.code


def not_let_in(data: bytes, version: int = 5, **fields: Any) -> int:
    """Sends the first bytes of a client, and returns the code of the CONNACK that refuses it; returns -1 where none
    comes.
    """
    driver = Driver(version, **fields)
    driver.feed(data + encode(Subscribe(packet_id=1, requests=(request(),)), version))
    out = driver.out()
    assert driver.closed is not None, "the connection goes on"
    assert driver.asked is None, "a session was opened"
    if not out:
        return -1
    (connack,) = out
    assert isinstance(connack, Connack)
    assert not connack.session_present
    return connack.code
