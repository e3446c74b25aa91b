"""Echo (RFC 9175, 2): requests that are fresh, and endpoints whose address is verified.

An Echo value is a time and a MAC over it and the endpoint, so none has to be remembered:

    | time, 100 ms each, 32 bits | MAC, 64 bits |
"""

from hashlib import blake2b
from hmac import compare_digest

from adapters.coap.exchanges.answers import EchoRequired
from adapters.coap.messages.settings import CoapOptions
from gateway.port.adapter import Peer, Random

KEY_BITS = 256
MAC_BYTES = 8
TIME_BYTES = 4
TICK_MS = 100
FREE_BYTES = 136  # of a response to an unverified peer (RFC 9175, 2.4)
REACHED_MS = 600_000  # an endpoint counts as verified for so long after its last Echo
REACHED_COUNT_MAX = 65_536  # endpoints remembered as verified; the one that was verified first is asked again


class EchoVerifier:
    """Makes Echo values, verifies them, and remembers the endpoints that have sent a right one."""

    def __init__(self, settings: CoapOptions, *, random: Random, reliable: bool) -> None:
        """Makes a verifier. `reliable`: the transport has verified the endpoint's address."""
        self._fresh_ms = settings.echo_fresh_s * 1_000
        self._amplification_max = 0 if reliable else settings.amplification_max
        self._key = random.getrandbits(KEY_BITS).to_bytes(KEY_BITS // 8, "big")
        self._reached: dict[Peer, int] = {}  # until when each counts as verified, the earliest first

    @property
    def wants_freshness(self) -> bool:
        """Returns whether requests that store something must be fresh."""
        return self._fresh_ms > 0

    def value(self, peer: Peer, now_ms: int) -> bytes:
        """Returns the Echo value for an endpoint now."""
        time = (now_ms // TICK_MS & 0xFFFF_FFFF).to_bytes(TIME_BYTES, "big")
        return time + self._mac(time, peer)

    def age_ms(self, peer: Peer, echo: bytes, now_ms: int) -> int | None:
        """Returns how old an Echo value is; None for one that is not ours for this endpoint."""
        time, mac = echo[:TIME_BYTES], echo[TIME_BYTES:]
        if not compare_digest(mac, self._mac(time, peer)):
            return None
        return (now_ms // TICK_MS - int.from_bytes(time, "big") & 0xFFFF_FFFF) * TICK_MS

    def check_fresh(self, peer: Peer, echo: bytes, now_ms: int) -> None:
        """Raises `EchoRequired` for a request that has to be fresh and has no fresh Echo (RFC 9175, 2.3)."""
        age_ms = self._heard(peer, echo, now_ms) if echo else None
        if not self._fresh_ms:
            return
        if age_ms is None or age_ms > self._fresh_ms:
            raise EchoRequired(self.value(peer, now_ms), "the request needs a fresh Echo")

    def room(self, peer: Peer, echo: bytes, request_bytes: int, now_ms: int) -> int | None:
        """Returns how large the response to a request may be, in bytes; None where nothing limits it.

        An endpoint that sends an Echo value back is verified: it receives datagrams sent to its address.
        """
        if not self._amplification_max:
            return None
        if echo:
            self._heard(peer, echo, now_ms)
        if self._reached.get(peer, 0) > now_ms:
            return None
        return max(FREE_BYTES, self._amplification_max * request_bytes)

    def _heard(self, peer: Peer, echo: bytes, now_ms: int) -> int | None:
        """Notes an endpoint whose Echo value is right; returns how old that is."""
        age_ms = self.age_ms(peer, echo, now_ms)
        if self._amplification_max and age_ms is not None and age_ms <= REACHED_MS:
            self._reached.pop(peer, None)
            if len(self._reached) >= REACHED_COUNT_MAX:
                del self._reached[next(iter(self._reached))]
            self._reached[peer] = now_ms + REACHED_MS
        return age_ms

    def challenge(self, peer: Peer, now_ms: int) -> EchoRequired:
        """Returns the error that asks an endpoint to verify its address."""
        return EchoRequired(self.value(peer, now_ms), "verify the address with this Echo")

    def _mac(self, time: bytes, peer: Peer) -> bytes:
        return blake2b(time + repr(peer).encode(), digest_size=MAC_BYTES, key=self._key).digest()
