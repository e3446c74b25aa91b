"""AMQP 0-9-1 as far as the loads need it: frames encoded in advance, a connection with one channel, confirms."""

import socket
import struct
import time
from collections.abc import Sequence

from tests.bench.load.base import SILENCE_S, LoadError, Silence

METHOD, HEADER, BODY = 1, 2, 3
CHANNEL = 1
PERSISTENT = 2
METHOD_FRAME_MIN = 12  # bytes
NO_ARGUMENTS = b"\0\0\0\0"  # an empty table
FRAME_AND_NAME = struct.Struct("!BHIHH").unpack_from  # a frame's header and, in a method's, the name

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41)
CHANNEL_OPEN, CHANNEL_OPEN_OK = (20, 10), (20, 11)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK, EXCHANGE_DELETE, EXCHANGE_DELETE_OK = (40, 10), (40, 11), (40, 20), (40, 21)
DECLARE, DECLARE_OK, BIND, BIND_OK, DELETE, DELETE_OK = (50, 10), (50, 11), (50, 20), (50, 21), (50, 40), (50, 41)
QOS, QOS_OK, CONSUME, CONSUME_OK, PUBLISH = (60, 10), (60, 11), (60, 20), (60, 21), (60, 40)
ACK, NACK = (60, 80), (60, 120)
SELECT, SELECT_OK = (85, 10), (85, 11)
CLOSING = {(10, 50), (20, 40)}  # connection.close and channel.close: a refusal


def short(value: str) -> bytes:
    """Returns a short string (4.2.5.3)."""
    data = value.encode()
    return bytes([len(data)]) + data


def long(value: bytes) -> bytes:
    """Returns a long string (4.2.5.3)."""
    return struct.pack("!I", len(value)) + value


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    """Returns a frame (2.3.5)."""
    return struct.pack("!BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(name: tuple[int, int], arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    """Returns a method's frame (2.3.5.1)."""
    return frame(METHOD, struct.pack("!HH", *name) + arguments, channel)


def message(exchange: str, routing_key: str, body: bytes, channel: int = CHANNEL) -> bytes:
    """Returns a whole basic.publish of a persistent message: method, header with content type and delivery mode,
    body.
    """
    properties = struct.pack("!H", 0x9000) + short("application/json") + bytes([PERSISTENT])
    return (
        method(PUBLISH, b"\0\0" + short(exchange) + short(routing_key) + b"\0", channel)
        + frame(HEADER, struct.pack("!HHQ", 60, 0, len(body)) + properties, channel)
        + frame(BODY, body, channel)
    )


def declaration(queue: str, arguments: bytes = NO_ARGUMENTS) -> bytes:
    """Returns the arguments of queue.declare for a durable queue."""
    return b"\0\0" + short(queue) + b"\x02" + arguments


def binding(queue: str, exchange: str, routing_key: str) -> bytes:
    """Returns the arguments of queue.bind."""
    return b"\0\0" + short(queue) + short(exchange) + short(routing_key) + b"\0" + NO_ARGUMENTS


def deletion(queue: str) -> bytes:
    """Returns the arguments of queue.delete."""
    return b"\0\0" + short(queue) + b"\0"


class Session:
    """A connection with one channel open, as guest."""

    def __init__(self, host: str, port: int) -> None:
        """Connects and makes the handshake. Raises `LoadError`, OSError."""
        self.socket = socket.create_connection((host, port), timeout=SILENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self._await(START)
        login = long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        self.socket.sendall(method(START_OK, login, channel=0))
        channels, frame_max, _ = struct.unpack("!HIH", self._await(TUNE)[:8])
        self.socket.sendall(method(TUNE_OK, struct.pack("!HIH", channels, frame_max, 0), channel=0))
        self.call(OPEN, short("/") + short("") + b"\0", OPEN_OK, channel=0)
        self.call(CHANNEL_OPEN, short(""), CHANNEL_OPEN_OK)

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()

    def declare(self, queue: str, *, exchange: str, routing_key: str) -> None:
        """Declares a durable queue and binds it."""
        self.call(DECLARE, declaration(queue), DECLARE_OK)
        self.call(BIND, binding(queue, exchange, routing_key), BIND_OK)

    def delete(self, queue: str) -> None:
        """Deletes a queue with all its messages."""
        self.call(DELETE, deletion(queue), DELETE_OK)

    def count(self, queue: str) -> int:
        """Returns how many messages of a queue wait (`message_count` of a passive declaration)."""
        answer = self.call(DECLARE, b"\0\0" + short(queue) + b"\x01" + NO_ARGUMENTS, DECLARE_OK)
        return int.from_bytes(answer[1 + answer[0] :][:4], "big")

    def confirm(self) -> None:
        """Asks for publisher confirms."""
        self.call(SELECT, b"\0", SELECT_OK)

    def consume(self, queue: str, *, prefetch: int) -> None:
        """Begins to consume; deliveries may follow at once."""
        self.call(QOS, struct.pack("!IHB", 0, prefetch, 0), QOS_OK)
        self.socket.sendall(method(CONSUME, b"\0\0" + short(queue) + short("") + b"\0" + struct.pack("!I", 0)))

    def acknowledge(self, tag: int) -> None:
        """Acknowledges everything up to a delivery tag."""
        self.socket.sendall(method(ACK, struct.pack("!QB", tag, 1)))

    def reject(self, tag: int) -> None:
        """Rejects everything up to a delivery tag; nothing is given back to its queue."""
        self.socket.sendall(method(NACK, struct.pack("!QB", tag, 1)))

    def call(self, name: tuple[int, int], arguments: bytes, answer: tuple[int, int], channel: int = CHANNEL) -> bytes:
        """Sends a method, and returns the arguments of its answer; drops all else that comes with it."""
        self.socket.sendall(method(name, arguments, channel))
        return self._await(answer)

    def ask(self, requests: Sequence[bytes], answer: tuple[int, int], *, under_way: int = 100) -> float:
        """Sends all requests, some at a time, and returns the seconds to the last answer."""
        began_s, sent, answered = time.perf_counter(), 0, 0
        while answered < len(requests):
            upto = min(answered + under_way, len(requests))
            self.socket.sendall(b"".join(requests[sent:upto]))
            sent = upto
            answered += sum(name == answer for name, _ in self.methods())
        return time.perf_counter() - began_s

    def _await(self, name: tuple[int, int]) -> bytes:
        while True:
            for found, arguments in self.methods():
                if found == name:
                    return arguments

    def methods(self) -> list[tuple[tuple[int, int], bytes]]:
        """Reads once, and returns every whole method that has arrived, with its arguments; skips contents.

        Raises `Silence` when nothing comes, `LoadError` when the server closes the channel or the connection.
        """
        data = self._read()
        at, end = 0, len(data)
        found = []
        while end - at >= METHOD_FRAME_MIN:
            kind, _, size, class_id, method_id = FRAME_AND_NAME(data, at)
            if end - at < size + 8:
                break
            if kind == METHOD:
                name, arguments = (class_id, method_id), data[at + 11 : at + 7 + size]
                if name in CLOSING:
                    raise LoadError(f"refused: {arguments!r}")
                found.append((name, arguments))
            at += size + 8
        self._rest = data[at:]
        return found

    def deliveries(self) -> tuple[int, int]:
        """Reads once; returns how many deliveries begin there, and the tag of the last, 0 without one. Raises like
        `methods`.

        A loop of its own: the reader shares the machine with the server, and must cost little for each message.
        """
        data = self._read()
        at, end, count, last = 0, len(data), 0, 0
        while end - at >= METHOD_FRAME_MIN:
            kind, _, size, class_id, method_id = FRAME_AND_NAME(data, at)
            if end - at < size + 8:
                break
            if kind == METHOD:
                if class_id == 60 and method_id == 60:  # basic.deliver
                    count += 1
                    last = at
                elif (class_id, method_id) in CLOSING:
                    raise LoadError(f"refused: {data[at + 11 : at + 7 + size]!r}")
            at += size + 8
        self._rest = data[at:]
        if not count:
            return 0, 0
        tag_at = last + 12 + data[last + 11]  # behind the consumer's name
        return count, int.from_bytes(data[tag_at : tag_at + 8], "big")

    def _read(self) -> bytes:
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            raise Silence(f"nothing came for {self.socket.gettimeout()} s") from None
        if not data:
            raise LoadError("closed by the server")
        return self._rest + data


class Confirms:
    """The publishes that were answered: all up to `_floor`, and single ones beyond."""

    def __init__(self) -> None:
        self.nacked = 0
        self._floor = 0
        self._beyond: set[int] = set()

    @property
    def answered(self) -> int:
        """Returns how many were acknowledged or refused."""
        return self._floor + len(self._beyond)

    def take(self, name: tuple[int, int], arguments: bytes) -> None:
        """Takes a basic.ack or basic.nack, and ignores all other methods."""
        if name not in {ACK, NACK}:
            return
        tag, multiple = struct.unpack_from("!QB", arguments)
        before = self.answered
        if multiple & 1:
            self._floor = max(self._floor, tag)
            self._beyond = {one for one in self._beyond if one > tag} if self._beyond else self._beyond
        elif tag > self._floor:
            self._beyond.add(tag)
        while self._floor + 1 in self._beyond:
            self._floor += 1
            self._beyond.discard(self._floor)
        if name == NACK:
            self.nacked += self.answered - before


class ChannelAcks:
    """Reads the confirms of a connection's channels, each of which has one publish under way."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._rest = b""

    def read(self) -> list[int]:
        """Returns the channels whose publish is confirmed. Raises `LoadError`, also for anything else than an ack."""
        data = self._rest + receive(self.session.socket)
        at, end, channels = 0, len(data), []
        while end - at >= METHOD_FRAME_MIN:
            _, channel, size, class_id, method_id = FRAME_AND_NAME(data, at)
            if end - at < size + 8:
                break
            if (class_id, method_id) != ACK:
                raise LoadError(f"method {class_id}.{method_id} came where a confirm was awaited")
            channels.append(channel)
            at += size + 8
        self._rest = data[at:]
        return channels


def receive(connection: socket.socket) -> bytes:
    """Returns what came. Raises `LoadError` when the server has closed."""
    data = connection.recv(1 << 16)
    if not data:
        raise LoadError("closed by the server")
    return data
