"""Clients of every protocol that publish numbers and remember which were acknowledged, and what the log has of them."""

import contextlib
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

import httpx
import numpy as np
import pika
import pika.exceptions

from store.api.message import decode
from store.remoting.reader import RemoteReader

WINDOW = 64


class Refused(Exception):
    """The server is there, and said no."""


class Sender(threading.Thread):
    """Publishes numbered messages to an address of its own until the server is gone or says no, or it is asked to stop;
    `acked` are the numbers that were acknowledged, `ended` is why it has ended by itself. `logged`: they are read back
    from the log."""

    logged = True

    def __init__(self, gateway, name, first):
        super().__init__(name=name, daemon=True)
        self.gateway = gateway
        self.next = first
        self.acked = []
        self.stopping = False
        self.ended = None
        self.pace_s = 0.0  # how long it rests between what it sends

    @property
    def address(self):
        return f"kill/{self.name}/n"

    def run(self):
        try:
            self.send()
        except (pika.exceptions.NackError, pika.exceptions.UnroutableError) as error:
            self.ended = Refused(f"{type(error).__name__}: {error}")
        except (OSError, EOFError, httpx.HTTPError, pika.exceptions.AMQPError, Refused) as error:
            self.ended = error

    def goes_on(self):
        """Returns whether to send more, after a rest."""
        if self.pace_s:
            time.sleep(self.pace_s)
        return not self.stopping


@contextlib.contextmanager
def mqtt_connection(gateway, name, *, clean=True):
    """Yields the socket of an MQTT 3.1.1 client that has been let in, and whether its session was there."""
    with socket.create_connection((gateway.host, gateway.port("mqtt")), timeout=10) as peer:
        client_id = name.encode()
        body = b"\0\4MQTT\4" + bytes([2 * clean]) + b"\0\x3c" + struct.pack("!H", len(client_id)) + client_id
        peer.sendall(bytes([0x10, len(body)]) + body)
        present = accepted(peer.recv(4))
        yield peer, present


class MqttSender(Sender):
    """QoS 1 with a window, by hand: the acknowledgement is the packet id's."""

    def send(self):
        with mqtt_connection(self.gateway, self.name) as (peer, _):
            waiting, buffered = {}, b""
            while self.goes_on():
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
                    raise EOFError("closed")
                buffered += data
                while len(buffered) >= 4:
                    assert buffered[:2] == b"\x40\2"
                    self.acked.append(waiting.pop(buffered[2] << 8 | buffered[3]))
                    buffered = buffered[4:]


class HttpSender(Sender):
    def send(self):
        with httpx.Client(http2=True, http1=False, timeout=10) as client:
            while self.goes_on():
                number, self.next = self.next, self.next + 1
                answer = client.post(
                    f"{self.gateway.url}/topics/{self.address}", content=str(number), params={"key": self.name}
                )
                if answer.status_code != 201:
                    raise Refused(f"{answer.status_code} {answer.text[:200]}")
                self.acked.append(number)


class Http1Sender(Sender):
    """Posts over HTTP/1.1, each request in one write and like the one before: they take the short way."""

    def send(self):
        at = urlsplit(self.gateway.url)
        with socket.create_connection((at.hostname, at.port), timeout=10) as peer:
            head = f"POST /topics/{self.address} HTTP/1.1\r\nhost: {at.netloc}\r\n"
            while self.goes_on():
                number, self.next = self.next, self.next + 1
                peer.sendall(f"{head}content-length: {len(str(number))}\r\n\r\n{number}".encode())
                answer = b""
                while not answer.endswith(b"}"):
                    if not (data := peer.recv(65536)):
                        raise EOFError("closed")
                    answer += data
                if not answer.startswith(b"HTTP/1.1 201 "):
                    raise Refused(answer[:200].decode())
                self.acked.append(number)


class AmqpSender(Sender):
    def send(self):
        parameters = pika.ConnectionParameters(self.gateway.host, self.gateway.port("amqp"))
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while self.goes_on():
                number, self.next = self.next, self.next + 1
                properties = pika.BasicProperties(delivery_mode=2, headers={"ce-partitionkey": self.name})
                channel.basic_publish("amq.topic", self.address.replace("/", "."), str(number).encode(), properties)
                self.acked.append(number)


class Mqtt2Sender(Sender):
    """QoS 2 with a window: acknowledged is what PUBREC has answered; PUBREL and PUBCOMP go on beside it."""

    def send(self):
        with mqtt_connection(self.gateway, self.name) as (peer, _):
            under_way, buffered, out = {}, b"", b""
            while self.goes_on():
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
                    raise EOFError("closed")
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
    """Confirmable POSTs, one at a time (NSTART), sent again until they are answered or the server is long gone. An
    answer may come with its acknowledgement or, where that takes long, by itself (RFC 7252, 5.2)."""

    def send(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.connect((self.gateway.host, self.gateway.port("coap")))
            peer.settimeout(0.2)
            levels = [b"t", *self.address.encode().split(b"/")]
            path = b"".join(option(0 if i else 11, level) for i, level in enumerate(levels))  # Uri-Path
            while self.goes_on():
                number, self.next = self.next, self.next + 1
                token = struct.pack("!H", number & 0xFFFF)
                self.ask(peer, b"\x42\x02" + token + token + path + b"\xff" + str(number).encode(), token)
                self.acked.append(number)

    def ask(self, peer, request, token):
        """Sends a request until 2.01 answers it. Raises `ConnectionRefusedError` where nobody listens at the port."""
        for _ in range(50):
            peer.send(request)
            try:
                answer = peer.recv(1500)
                while answer[1] == 0 or answer[4:6] != token:  # only an acknowledgement, or of an earlier request
                    answer = peer.recv(1500)
            except TimeoutError:
                continue
            if answer[0] >> 4 == 4:  # confirmable itself
                peer.send(b"\x60\0" + answer[2:4])
            if answer[1] != 0x41:
                raise Refused(f"{answer[1] >> 5}.{answer[1] & 31:02} {answer[6:].decode('utf-8', 'replace')}")
            return
        raise EOFError("no answer")


def accepted(connack):
    """See that a connection was accepted; whether its session was there (MQTT 3.1.1, 3.2)."""
    if not connack:
        raise EOFError("closed")
    if connack not in {b"\x20\2\0\0", b"\x20\2\1\0"}:
        raise Refused(f"CONNACK {connack.hex()}")
    return bool(connack[2])


def option(delta, value):
    """Returns the bytes of a CoAP option of less than 269 bytes (RFC 7252, 3.1)."""
    if len(value) < 13:
        return bytes([delta << 4 | len(value)]) + value
    return bytes([delta << 4 | 13, len(value) - 13]) + value


KINDS = {
    "mqtt1": MqttSender,
    "mqtt2": MqttSender,
    "qos2": Mqtt2Sender,
    "coap": CoapSender,
    "http": HttpSender,
    "amqp": AmqpSender,
}


def stored(gateway):
    """Returns the numbers in the log by address, in the order of the log."""
    found = {}
    with RemoteReader(f"{gateway.host}:{gateway.port('rpc')}") as reader:
        queues = reader.topics()["kill"]
        for queue, bounds in reader.bounds(queues).items():
            for frame, rows, _ in reader.fetch(queue, bounds.first, bounds.next):
                for row in np.asarray(rows).tolist():
                    message = decode(frame.record(row))
                    found.setdefault(message.address, []).append(int(message.body))
    return found
