"""A client that publishes, in one message or in blocks, and remembers what it was told of each body."""

from dataclasses import dataclass, field

from adapters.coap.codec.registry import (
    BLOCK1,
    CHANGED,
    CONTINUE,
    CREATED,
    POST,
    PUT,
    REQUEST_ENTITY_INCOMPLETE,
    REQUEST_TAG,
    URI_PATH,
    URI_QUERY,
)
from adapters.coap.codec.wire import Option, Packet, encode_uint
from adapters.coap.messages.request import Block
from tests.sim.coap.coap_device import Device

EXPONENT = 1  # blocks of 32 bytes
ATTEMPTS_MAX = 2  # of a body whose blocks the gateway has lost


@dataclass
class Published:
    """One body and its fate: "stored", "refused", "given up", "unknown", or "" as long as it is not known."""

    number: int
    confirmable: bool
    begun_ms: int
    fate: str = ""
    blocks: int = 1
    restarted: int = 0


@dataclass
class Bodies:
    """All bodies of a history, each with a number that it begins with."""

    published: list[Published] = field(default_factory=list)

    def new(self, size: int, *, confirmable: bool, now_ms: int) -> tuple[Published, bytes]:
        """Returns a body of at least so many bytes."""
        record = Published(len(self.published), confirmable, now_ms)
        self.published.append(record)
        return record, b"%06d:" % record.number + b"x" * (size - 7)


def number_of(body: bytes) -> int:
    """Returns the number of a body, or of its first block."""
    return int(body[:6])


def path_options(address: str, *query: str) -> tuple[Option, ...]:
    """Returns the options that name an address."""
    path = tuple((URI_PATH, level.encode()) for level in ("t", *address.split("/")))
    return path + tuple((URI_QUERY, item.encode()) for item in query)


class Publisher:
    """Publishes one body after the other; `idle` where none is in flight."""

    def __init__(self, device: Device, bodies: Bodies) -> None:
        self.idle = True
        self._device = device
        self._bodies = bodies
        self._random = device.network.random
        self._tags = 0
        self._tagged = self._random.random() < 0.5  # else bodies in blocks have no Request-Tag until one fails

    def tell(self, address: str) -> None:
        """Publishes in a Non-confirmable request."""
        record, body = self._bodies.new(7, confirmable=False, now_ms=self._device.network.now_ms)
        record.fate = "unknown"
        self._device.tell(POST, path_options(address), body)

    def publish(self, address: str, *, blocks: int = 1) -> None:
        """Publishes in Confirmable requests."""
        size = 7 if blocks == 1 else (blocks - 1) * (16 << EXPONENT) + 7
        record, body = self._bodies.new(size, confirmable=True, now_ms=self._device.network.now_ms)
        record.blocks = blocks
        self.idle = False
        code = self._random.choice([POST, POST, PUT])
        options = path_options(address)
        if blocks == 1:
            self._device.ask(code, options, body, lambda response: self._told(record, response))
            return
        if self._tagged:
            self._tags += 1
            options = (*options, (REQUEST_TAG, encode_uint(self._tags)))
        self._send_block(record, code, options, body, 0)

    def _send_block(self, record: Published, code: int, options: tuple[Option, ...], body: bytes, number: int) -> None:
        size = 16 << EXPONENT
        part, more = body[number * size : (number + 1) * size], len(body) > (number + 1) * size
        block = (BLOCK1, Block(number, more, EXPONENT).encode())

        def told(response: Packet | None) -> None:
            if more and response is not None and response.code == CONTINUE:
                self._send_block(record, code, options, body, number + 1)
                return
            self._tagged |= response is None or response.code >> 5 != 2
            lost = response is not None and response.code == REQUEST_ENTITY_INCOMPLETE
            if lost and record.restarted < ATTEMPTS_MAX:
                record.restarted += 1
                self._tags += 1
                tagged = (*[one for one in options if one[0] != REQUEST_TAG], (REQUEST_TAG, encode_uint(self._tags)))
                self._send_block(record, code, tagged, body, 0)
                return
            self._told(record, response)

        self._device.ask(code, (*options, block), part, told)

    def _told(self, record: Published, response: Packet | None) -> None:
        self.idle = True
        if response is None:
            record.fate = "given up"
        elif response.code in {CREATED, CHANGED}:
            record.fate = "stored"
        else:
            assert response.code >> 5 in {4, 5}, response
            record.fate = "unknown" if response.code == 0xA4 else "refused"
