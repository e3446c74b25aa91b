"""Clients that send again, wherever they connect next, what was not answered: what is promised once counts once.

What such a client knows is kept from one connection to the next in its `memory`. A connection that it has left, as its
proxy sleeps, may be answered later; it changes the memory no more.
"""

import struct
import threading

import httpx
import pika

from tests.support.cluster.senders import WINDOW, Refused, Sender, mqtt_connection

DRAINED_GAP_S = 0.2


class Memory:
    """The memory of one client: `owner` is the connection that may change it. `wrong` is what was answered amiss."""

    def __init__(self):
        self.lock = threading.Lock()
        self.owner = None
        self.wrong = []


class SessionMemory(Memory):
    """An MQTT session: identifiers and their numbers that await PUBREC, and those that await PUBCOMP."""

    def __init__(self):
        super().__init__()
        self.known = False
        self.sent, self.released = {}, {}


class RequestMemory(Memory):
    """The request that is not answered yet, None: all are."""

    def __init__(self):
        super().__init__()
        self.pending = None


class QueueMemory(Memory):
    """Numbers that were confirmed in a queue, of which the settlement was asked for, and is known to be done."""

    def __init__(self):
        super().__init__()
        self.confirmed, self.asked, self.settled = set(), set(), set()


class Resender(Sender):
    """A sender with a memory. `mine` is whether it may change that still."""

    Memory = Memory

    def __init__(self, gateway, name, first, memory):
        super().__init__(gateway, name, first)
        self.memory = memory
        with memory.lock:
            memory.owner = self

    def mine(self):
        """Returns whether this is the client's newest connection. With the lock of the memory."""
        return self.memory.owner is self


class SessionSender(Resender):
    """QoS 2 in a session that goes on: what is not answered is sent again on the next connection (4.3.3, 4.4)."""

    Memory = SessionMemory

    def send(self):
        memory = self.memory
        with mqtt_connection(self.gateway, self.name, clean=False) as (peer, present):
            with memory.lock:
                if memory.known and not present:
                    memory.wrong.append(f"the session is gone, when {self.next} was next")
                memory.known = True
                again = b"".join(self.packet(id_, number, 8) for id_, number in memory.sent.items())
                again += b"".join(struct.pack("!BBH", 0x62, 2, id_) for id_ in memory.released)
            buffered, out = b"", again
            while self.goes_on():
                out += self.more()
                peer.sendall(out)
                data, out = peer.recv(65536), b""
                if not data:
                    raise EOFError("closed")
                buffered += data
                while len(buffered) >= 4:
                    (kind, id_), buffered = struct.unpack("!BxH", buffered[:4]), buffered[4:]
                    out += self.answered(kind, id_)

    def more(self):
        """Returns new packets for all identifiers that are free: the same few are used again and again."""
        memory, out = self.memory, b""
        with memory.lock:
            if not self.mine():
                raise EOFError("left")
            for id_ in range(1, WINDOW + 1):
                if id_ not in memory.sent and id_ not in memory.released:
                    memory.sent[id_] = self.next
                    out += self.packet(id_, self.next)
                    self.next += 1
        return out

    def answered(self, kind, id_):
        """Takes a PUBREC or a PUBCOMP, and returns what answers it."""
        memory = self.memory
        with memory.lock:
            if not self.mine():
                raise EOFError("left")
            if kind == 0x50:
                if (number := memory.sent.pop(id_, None)) is not None:
                    memory.released[id_] = number
                    self.acked.append(number)
                return struct.pack("!BBH", 0x62, 2, id_)
            assert kind == 0x70, hex(kind)
            memory.released.pop(id_, None)
            return b""

    def packet(self, id_, number, dup=0):
        topic = self.address.encode()
        body = struct.pack("!H", len(topic)) + topic + struct.pack("!H", id_) + str(number).encode()
        return bytes([0x34 | dup, len(body)]) + body


class KeyedSender(Resender):
    """Requests with an Idempotency-Key; one that is not answered is sent again under its key."""

    Memory = RequestMemory

    def send(self):
        memory = self.memory
        with httpx.Client(timeout=10, trust_env=False) as client:
            while self.goes_on():
                with memory.lock:
                    if not self.mine():
                        raise EOFError("left")
                    if memory.pending is None:
                        memory.pending, self.next = self.next, self.next + 1
                    number = memory.pending
                answer = client.post(
                    f"{self.gateway.url}/topics/{self.address}",
                    content=str(number),
                    params={"key": self.name},
                    headers={"idempotency-key": f'"{self.name}-{number}"'},
                )
                if answer.status_code != 201:
                    raise Refused(f"{answer.status_code} {answer.text[:200]}")
                self.acked.append(number)
                with memory.lock:
                    if self.mine():
                        memory.pending = None


class SettlingSender(Resender):
    """Publishes to a queue with confirms, and gets from it again; a settlement in a transaction is answered.

    `acked` are the numbers that are settled.
    """

    Memory = QueueMemory
    logged = False  # its numbers are in a queue of their own

    @property
    def queue(self):
        return f"settled-{self.name}"

    def send(self):
        memory = self.memory
        parameters = pika.ConnectionParameters(self.gateway.host, self.gateway.port("amqp"))
        with pika.BlockingConnection(parameters) as connection:
            publishing, consuming = connection.channel(), connection.channel()
            publishing.confirm_delivery()
            publishing.queue_declare(self.queue, durable=True)
            consuming.tx_select()
            properties = pika.BasicProperties(delivery_mode=2)
            while self.goes_on():
                number, self.next = self.next, self.next + 1
                publishing.basic_publish("", self.queue, str(number).encode(), properties)
                with memory.lock:
                    memory.confirmed.add(number)
                method, _, body = consuming.basic_get(self.queue)
                if method is None:
                    continue
                got = int(body)
                with memory.lock:
                    if not self.mine():
                        raise EOFError("left")
                    if got in memory.settled:
                        memory.wrong.append(f"{got} was delivered again")
                    memory.asked.add(got)
                consuming.basic_ack(method.delivery_tag)
                consuming.tx_commit()
                with memory.lock:
                    memory.settled.add(got)
                self.acked.append(got)


def misplaced(gateway, name, memory):
    """Empties the queue of a `SettlingSender` that has ended; what is wrong with what is left of it."""
    left = []
    with pika.BlockingConnection(pika.ConnectionParameters(gateway.host, gateway.port("amqp"))) as connection:
        channel = connection.channel()
        for _ in range(50):
            while (found := channel.basic_get(f"settled-{name}", auto_ack=True))[0] is not None:
                left.append(int(found[2]))
            if memory.confirmed <= memory.asked | set(left):
                break
            connection.sleep(DRAINED_GAP_S)  # leases of connections that ended come back one by one
    wrong = list(memory.wrong)
    wrong += [f"{one} is lost" for one in sorted(memory.confirmed - memory.asked - set(left))]
    wrong += [f"{one} is there, although it is settled" for one in sorted(memory.settled & set(left))]
    wrong += [f"{one} is there twice" for one in sorted(set(left)) if left.count(one) > 1]
    return wrong


RESENDERS = {"session": SessionSender, "keyed": KeyedSender, "settling": SettlingSender}
