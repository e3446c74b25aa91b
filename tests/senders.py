"""Clients of every protocol that publish numbers and remember which were acknowledged, and what the log has of them."""

import socket
import struct
import threading

import httpx
import numpy as np
import pika
import pika.exceptions

from gateway.message import decode
from store.remote import RemoteReader

__all__ = ["KINDS", "Sender", "stored"]

WINDOW = 64


class Sender(threading.Thread):
    """Publishes numbered messages to an address of its own until the server is gone; `acked` are the numbers that were
    acknowledged."""

    def __init__(self, gateway, name, first):
        super().__init__(name=name, daemon=True)
        self.gateway = gateway
        self.next = first
        self.acked = []

    @property
    def address(self):
        return f"kill/{self.name}/n"

    def run(self):
        try:
            self.send()
        except (OSError, EOFError, httpx.HTTPError, pika.exceptions.AMQPError):
            return  # the server was killed, as it should be


class MqttSender(Sender):
    """QoS 1 with a window, by hand: the acknowledgement is the packet id's."""

    def send(self):
        with socket.create_connection(("127.0.0.1", self.gateway.port("mqtt")), timeout=10) as peer:
            client_id = self.name.encode()
            body = b"\0\4MQTT\4\2\0\x3c" + struct.pack("!H", len(client_id)) + client_id
            peer.sendall(bytes([0x10, len(body)]) + body)
            assert peer.recv(4) == b"\x20\2\0\0"
            waiting, buffered = {}, b""
            while True:
                out = b""
                while len(waiting) < WINDOW:
                    packet_id = self.next % 60_000 + 1
                    waiting[packet_id] = self.next
                    topic, payload = self.address.encode(), str(self.next).encode()
                    packet = struct.pack("!H", len(topic)) + topic + struct.pack("!H", packet_id) + payload
                    out += bytes([0x32, len(packet)]) + packet
                    self.next += 1
                peer.sendall(out)
                data = peer.recv(65536)
                if not data:
                    return
                buffered += data
                while len(buffered) >= 4:
                    assert buffered[:2] == b"\x40\2"
                    self.acked.append(waiting.pop(buffered[2] << 8 | buffered[3]))
                    buffered = buffered[4:]


class HttpSender(Sender):
    def send(self):
        with httpx.Client(http2=True, http1=False, timeout=10) as client:
            while True:
                number, self.next = self.next, self.next + 1
                answer = client.post(
                    f"{self.gateway.url}/topics/{self.address}", content=str(number), params={"key": self.name}
                )
                assert answer.status_code == 201
                self.acked.append(number)


class AmqpSender(Sender):
    def send(self):
        parameters = pika.ConnectionParameters("127.0.0.1", self.gateway.port("amqp"))
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while True:
                number, self.next = self.next, self.next + 1
                properties = pika.BasicProperties(delivery_mode=2, headers={"ce-partitionkey": self.name})
                channel.basic_publish("amq.topic", self.address.replace("/", "."), str(number).encode(), properties)
                self.acked.append(number)


class Mqtt2Sender(Sender):
    """QoS 2 with a window: acknowledged is what PUBREC has answered; PUBREL and PUBCOMP go on beside it."""

    def send(self):
        with socket.create_connection(("127.0.0.1", self.gateway.port("mqtt")), timeout=10) as peer:
            client_id = self.name.encode()
            body = b"\0\4MQTT\4\2\0\x3c" + struct.pack("!H", len(client_id)) + client_id
            peer.sendall(bytes([0x10, len(body)]) + body)
            assert peer.recv(4) == b"\x20\2\0\0"
            under_way, buffered, out = {}, b"", b""
            while True:
                while len(under_way) < WINDOW:
                    packet_id = self.next % 60_000 + 1
                    under_way[packet_id] = self.next
                    topic, payload = self.address.encode(), str(self.next).encode()
                    packet = struct.pack("!H", len(topic)) + topic + struct.pack("!H", packet_id) + payload
                    out += bytes([0x34, len(packet)]) + packet
                    self.next += 1
                peer.sendall(out)
                data, out = peer.recv(65536), b""
                if not data:
                    return
                buffered += data
                while len(buffered) >= 4:
                    (kind, packet_id), buffered = struct.unpack("!BxH", buffered[:4]), buffered[4:]
                    if kind == 0x50:  # PUBREC
                        self.acked.append(under_way[packet_id])
                        out += struct.pack("!BBH", 0x62, 2, packet_id)
                    else:
                        assert kind == 0x70  # PUBCOMP
                        del under_way[packet_id]


class CoapSender(Sender):
    """Confirmable POSTs, one at a time (NSTART), sent again until they are acknowledged or the server is long gone."""

    def send(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.connect(("127.0.0.1", self.gateway.port("coap")))
            peer.settimeout(0.2)
            levels = [b"t", *self.address.encode().split(b"/")]
            path = bytes([0xB0 | len(levels[0])]) + levels[0] + b"".join(bytes([len(x)]) + x for x in levels[1:])
            while True:
                number, self.next = self.next, self.next + 1
                tag = struct.pack("!H", number & 0xFFFF)
                self.ask(peer, b"\x40\x02" + tag + path + b"\xff" + str(number).encode(), tag)
                self.acked.append(number)

    def ask(self, peer, request, tag):
        """Send until there is the answer 2.01; a port where nobody listens ends it (ConnectionRefusedError)."""
        for _ in range(50):
            peer.send(request)
            try:
                answer = peer.recv(100)
                while answer[2:4] != tag or answer[1] == 0:  # of an earlier transmission, or only its acknowledgement
                    answer = peer.recv(100)
            except TimeoutError:
                continue
            assert answer[:2] == b"\x60\x41", answer
            return
        raise EOFError("no answer")


KINDS = {
    "mqtt1": MqttSender,
    "mqtt2": MqttSender,
    "qos2": Mqtt2Sender,
    "coap": CoapSender,
    "http": HttpSender,
    "amqp": AmqpSender,
}


def stored(gateway):
    """The numbers in the log, by address, in the order of the log."""
    found = {}
    with RemoteReader(f"127.0.0.1:{gateway.port('rpc')}") as reader:
        queues = reader.topics()["kill"]
        for queue, bounds in reader.bounds(queues).items():
            for frame, rows, _ in reader.fetch(queue, bounds.first, bounds.next):
                for row in np.asarray(rows).tolist():
                    message = decode(frame.record(row))
                    found.setdefault(message.address, []).append(int(message.body))
    return found
