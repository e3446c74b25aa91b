"""A well-behaved CoAP client's message layer: it confirms, sends again and recognises repeats (RFC 7252, 4)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from msgspec import structs

from adapters.coap.codec.registry import ACK, CON, EMPTY, MAX_AGE, NON, OBSERVE, RST
from adapters.coap.codec.wire import Option, Packet, decode, encode
from gateway.port.adapter import Peer
from tests.sim.coap.coap_host import HOST, GatewayHost
from tests.sim.coap.coap_network import Network

ACK_TIMEOUT_MS = 2_000
MAX_RETRANSMIT = 4
MAX_TRANSMIT_WAIT_MS = 93_000
SEPARATE_WAIT_MS = 93_000  # for a separate response, after the empty acknowledgement
EXCHANGE_LIFETIME_MS = 247_000
NON_LIFETIME_MS = 145_000

Done = Callable[[Packet | None], None]


@dataclass(eq=False)
class Asked:
    """A request in flight. `done` is called once, with its response or, where it is given up, with None."""

    packet: Packet
    done: Done
    timeout_ms: int
    sent_again: int = 0
    acknowledged: bool = False


@dataclass
class Heard:
    """A message of the gateway, and its acknowledgement or Reset."""

    data: bytes
    heard_ms: int
    reply: bytes


class Device:
    """One endpoint. `on_token` takes responses with tokens that outlive their exchange: notifications."""

    def __init__(self, network: Network, host: GatewayHost, address: Peer) -> None:
        self.network, self.host, self.address = network, host, address
        self.on_token: dict[bytes, Callable[[Packet], None]] = {}
        self.separate = 0  # responses that came in messages of their own
        self._random = network.random
        self._by_mid: dict[int, Asked] = {}
        self._by_token: dict[bytes, Asked] = {}
        self._heard: dict[int, Heard] = {}
        self._used_ms: dict[int, int] = {}  # our Message IDs, and when each was used last
        self._next_mid = self._random.randrange(1 << 16)
        self._step = self._random.choice([1, 1, 0, -1])  # to the next Message ID; 0: any
        self._tokens = 0
        network.ends[address] = self._receive

    # ---- requests

    def new_token(self) -> bytes:
        """Returns a token that was not used before."""
        self._tokens += 1
        return self._tokens.to_bytes(2, "big")

    def ask(
        self, code: int, options: tuple[Option, ...], payload: bytes, done: Done, *, token: bytes | None = None
    ) -> Packet:
        """Sends a Confirmable request until it is answered or given up."""
        token = self.new_token() if token is None else token
        packet = Packet(type=CON, code=code, mid=self._new_mid(), token=token, options=options, payload=payload)
        timeout_ms = int(ACK_TIMEOUT_MS * self._random.uniform(1, 1.5))
        asked = Asked(packet, done, timeout_ms)
        self._by_mid[packet.mid] = self._by_token[token] = asked
        self._send(asked)
        self.network.after(MAX_TRANSMIT_WAIT_MS, lambda: None if asked.acknowledged else self._finish(asked, None))
        return packet

    def tell(self, code: int, options: tuple[Option, ...], payload: bytes) -> None:
        """Sends a Non-confirmable request, whose response nobody waits for."""
        token = self.new_token()
        self.on_token[token] = lambda _packet: None
        packet = Packet(type=NON, code=code, mid=self._new_mid(), token=token, options=options, payload=payload)
        self.network.send(encode(packet), self.address, HOST)

    def _new_mid(self) -> int:
        """Returns a Message ID that was not used for EXCHANGE_LIFETIME."""
        while True:
            self._next_mid = (self._next_mid + self._step if self._step else self._random.randrange(1 << 16)) & 0xFFFF
            used_ms = self._used_ms.get(self._next_mid)
            if used_ms is None or self.network.now_ms > used_ms + EXCHANGE_LIFETIME_MS:
                self._used_ms[self._next_mid] = self.network.now_ms
                return self._next_mid

    def _send(self, asked: Asked) -> None:
        self.network.send(encode(asked.packet), self.address, HOST)
        self.network.after(asked.timeout_ms, partial(self._again, asked))

    def _again(self, asked: Asked) -> None:
        if self._is_open(asked) and not asked.acknowledged and asked.sent_again < MAX_RETRANSMIT:
            asked.sent_again += 1
            asked.timeout_ms *= 2
            self._send(asked)

    def _is_open(self, asked: Asked) -> bool:
        return self._by_mid.get(asked.packet.mid) is asked

    def _finish(self, asked: Asked, response: Packet | None) -> None:
        if self._is_open(asked):
            del self._by_mid[asked.packet.mid]
            if self._by_token.get(asked.packet.token) is asked:
                del self._by_token[asked.packet.token]
            asked.done(response)

    # ---- messages of the gateway

    def _receive(self, data: bytes, _source: Peer) -> None:
        packet = decode(data)
        if packet.type == RST:
            assert packet.mid not in self._by_mid, "the gateway resets a request"
        elif packet.type == ACK:
            self._acknowledged(packet)
        else:
            self._told(packet, data)

    def _acknowledged(self, packet: Packet) -> None:
        asked = self._by_mid.get(packet.mid)
        if asked is None:
            return
        if packet.code != EMPTY:
            assert packet.token == asked.packet.token
            self._finish(asked, packet)
        elif not asked.acknowledged:
            asked.acknowledged = True
            self.network.after(SEPARATE_WAIT_MS, lambda: self._finish(asked, None))

    def _told(self, packet: Packet, data: bytes) -> None:
        now_ms = self.network.now_ms
        heard = self._heard.get(packet.mid)
        if heard is not None:
            lifetime_ms = EXCHANGE_LIFETIME_MS if heard.data[0] & 0x30 == CON << 4 else NON_LIFETIME_MS
            if now_ms < heard.heard_ms + lifetime_ms:
                same = _unnumbered(heard.data) == _unnumbered(data) or any(
                    heard.heard_ms <= at_ms for at_ms in self.host.restarts_ms
                )
                assert same, f"the gateway uses Message ID {packet.mid} again"
                if heard.reply:
                    self.network.send(heard.reply, self.address, HOST)
                return
        asked = self._by_token.get(packet.token)
        takes = self.on_token.get(packet.token)
        known = asked is not None or takes is not None
        reply = b""
        if packet.type == CON or (not known and self._random.random() < 0.5):
            reply = encode(Packet(type=ACK if known else RST, code=EMPTY, mid=packet.mid))
            self.network.send(reply, self.address, HOST)
        self._heard[packet.mid] = Heard(data, now_ms, reply)
        if asked is not None and not _is_notification_meanwhile(asked.packet, packet):
            self.separate += 1
            self._finish(asked, packet)
        elif takes is not None:
            takes(packet)


def _unnumbered(data: bytes) -> Packet:
    """Returns a message without the options that are brought up to date when it is sent again (RFC 7641, 4.4)."""
    packet = decode(data)
    kept = tuple(option for option in packet.options if option[0] not in {OBSERVE, MAX_AGE})
    return structs.replace(packet, options=kept)


def _is_notification_meanwhile(request: Packet, packet: Packet) -> bool:
    """Returns whether a message with the token of a request that ends an observation is still one of that."""
    return dict(request.options).get(OBSERVE) == b"\1" and OBSERVE in dict(packet.options)
