"""A client that observes one address (RFC 7641, 3), registers again when it has to, and keeps the newest value."""

from functools import partial

from adapters.coap.codec.registry import CONTENT, GET, MAX_AGE, OBSERVE
from adapters.coap.codec.wire import Packet, encode_uint, read_uint
from tests.sim.coap.coap_device import Device
from tests.sim.coap.coap_host import GatewayHost
from tests.sim.coap.coap_publisher import number_of, path_options

NEWER_MAX = 1 << 23
NEWER_ANYWAY_MS = 128_000
GONE = -1  # the number of no body


class Watcher:
    """One observation at a time. `body` is the number of the newest body, by the order of RFC 7641, 3.4."""

    def __init__(self, device: Device, host: GatewayHost, address: str, *, each: bool) -> None:
        self.device, self.host, self.address, self.each = device, host, address, each
        self.body = GONE
        self.accepted = self.passed_over = self.registered = 0
        self._random = device.network.random
        self._token = b""
        self._number = 0  # of the newest notification
        self._heard_ms: int | None = None  # when it came; None: the next one is the first of its observation
        self._asking = False
        self._turn = 0  # counts the plans to register, of which the last one holds
        self._restarts = 0  # of the gateway, that are known here
        self._missed_from: int | None = None  # the place in the address's history after which none may be left out

    # ---- requests

    def register(self, *, anew: bool) -> None:
        """Asks for the observation: with a token that is new, or with the one that it has."""
        if self._asking:
            return
        self._turn += 1
        if anew or self.each or not self._token:
            self.device.on_token.pop(self._token, None)
            self._token = self.device.new_token()
            self._heard_ms = self._missed_from = None
            self.device.on_token[self._token] = self._hear
        self._ask(0, self._registered)

    def deregister(self) -> None:
        """Ends the observation and begins another one after a while."""
        if not self._asking and self._token:
            self._turn += 1
            self._ask(1, lambda _response: self._left())

    def _ask(self, observe: int, done: object) -> None:
        self._asking = True
        options = path_options(self.address, *(("each=true",) if self.each else ()))
        options = (*options, (OBSERVE, encode_uint(observe)))
        self.device.ask(GET, options, b"", done, token=self._token)

    def _left(self) -> None:
        self._asking = False
        self._register_in(self._random.randrange(30_000))

    def _registered(self, response: Packet | None) -> None:
        self._asking = False
        if response is None:
            self._register_in(self._random.randrange(30_000))
        else:
            self.registered += 1
            self._register_in(30_000)  # where this is an older notification
            self._hear(response)

    def _register_in(self, delay_ms: int) -> None:
        self._turn += 1
        self.device.network.after(delay_ms, partial(self._register_at, self._turn))

    def _register_at(self, turn: int) -> None:
        if turn == self._turn:
            self.register(anew=self._random.random() < 0.5)

    # ---- notifications

    def _hear(self, packet: Packet) -> None:
        options = dict(packet.options)
        if packet.code != CONTENT or OBSERVE not in options:
            self._heard_ms = self._missed_from = None  # the observation has ended
            if packet.code == 0x84:
                self.body = GONE
            self._register_in(1_000 + self._random.randrange(20_000))
            return
        number, now_ms = read_uint(options[OBSERVE]), self.device.network.now_ms
        ahead = number - self._number & 0xFF_FFFF
        if self._heard_ms is None or 0 < ahead < NEWER_MAX or now_ms > self._heard_ms + NEWER_ANYWAY_MS:
            self._number, self._heard_ms = number, now_ms
            self._accept(packet)
            fresh_ms = read_uint(options[MAX_AGE]) * 1000
            self._register_in(fresh_ms + 5_000 + self._random.randrange(10_000))
        else:
            self.passed_over += 1

    def _accept(self, packet: Packet) -> None:
        self.accepted += 1
        self.body = number_of(packet.payload)
        if self.each:
            self._check_left_out()

    def _check_left_out(self) -> None:
        """Fails where a message was left out since the first response, unless the gateway was replaced since."""
        history = [number_of(message.body) for message in self.host.log if message.address == self.address]
        if len(self.host.restarts_ms) > self._restarts or history.count(self.body) > 1:
            self._restarts, self._missed_from = len(self.host.restarts_ms), None
        if history.count(self.body) > 1:  # stored again by another gateway: it is not known which one this is
            return
        place = history.index(self.body)
        if self._missed_from is not None:
            left_out = history[self._missed_from + 1 : place]
            assert not left_out, f"{left_out} of {self.address} were left out before {self.body}"
        self._missed_from = max(place, self._missed_from or 0)
