"""Limits of a peer's rate and of the number of connections: token buckets and the connection limiter.

No clock and no sockets: `now_ms` is passed in. Whatever the peer does costs a few additions a read, not a message.
"""

from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Final, NamedTuple

from gateway.domain.errors import Cause, Refusal
from gateway.security.limits_settings import LimitsConfig

REFUSING_COUNT_MAX: Final = 256  # connections at a time that are refused in their protocol's words; more are cut off


class Bucket:
    """Tokens that come back at a steady rate, up to a burst. Taking more than there are leaves a debt.

    So input that was read is never refused, and the rate holds over time all the same: the next wait is longer.
    """

    __slots__ = ("_at_ms", "_burst", "_left", "_per_ms")

    def __init__(self, per_s: float, burst: float, *, now_ms: int) -> None:
        self._per_ms = per_s / 1_000
        self._burst = burst
        self._left = burst
        self._at_ms = now_ms

    def take(self, count: int, *, now_ms: int) -> None:
        """Uses tokens, whether they are there or not."""
        self._left = self._left_at(now_ms) - count
        self._at_ms = now_ms

    def wait_ms(self, *, now_ms: int, need: int = 0) -> int:
        """Returns how long it takes until there are as many tokens as needed; 0: they are there."""
        missing = need - self._left_at(now_ms)
        return ceil(missing / self._per_ms) if missing > 0 else 0

    def _left_at(self, now_ms: int) -> float:
        self._at_ms = min(self._at_ms, now_ms)  # a clock that was set back gives nothing, and goes on from there
        return min(self._burst, self._left + (now_ms - self._at_ms) * self._per_ms)


class SendingPace:
    """The rate at which one connection sends, against its limits.

    Where excess waits, the shell reads again after `wait_ms`. Where it is refused, a `Publish` is refused as a
    whole while earlier ones have left a debt; a refused one adds nothing to that debt.
    """

    __slots__ = ("_bytes", "_messages", "_refuses")

    def __init__(self, config: LimitsConfig, *, now_ms: int) -> None:
        self._messages = self._bytes = None
        if config.messages_per_s:
            self._messages = Bucket(config.messages_per_s, config.messages_burst, now_ms=now_ms)
        if config.bytes_per_s:
            self._bytes = Bucket(config.bytes_per_s, config.bytes_burst, now_ms=now_ms)
        self._refuses = config.on_excess == "refuse"

    @staticmethod
    def of(config: LimitsConfig, *, now_ms: int) -> "SendingPace | None":
        """Returns the pace of a new connection; None where the configuration limits no rate."""
        return SendingPace(config, now_ms=now_ms) if config.messages_per_s or config.bytes_per_s else None

    def read(self, size_bytes: int, *, now_ms: int) -> None:
        """Counts bytes that the client has sent, messages or not."""
        if self._bytes is not None and not self._refuses:
            self._bytes.take(size_bytes, now_ms=now_ms)

    def publish(self, count: int, size_bytes: int, *, now_ms: int) -> Refusal | None:
        """Counts messages of so many bytes in all, and returns why they are refused, if they are."""
        if self._refuses:
            wait_ms = self._debt_ms(now_ms)
            if wait_ms:
                return Refusal(Cause.RATE, "more than limits.messages_per_s or bytes_per_s", retry_after_ms=wait_ms)
            if self._bytes is not None:
                self._bytes.take(size_bytes, now_ms=now_ms)
        if self._messages is not None:
            self._messages.take(count, now_ms=now_ms)
        return None

    def wait_ms(self, *, now_ms: int) -> int:
        """Returns how long nothing is to be read; 0: read on."""
        return 0 if self._refuses else self._debt_ms(now_ms)

    def _debt_ms(self, now_ms: int) -> int:
        return max([bucket.wait_ms(now_ms=now_ms) for bucket in (self._messages, self._bytes) if bucket is not None])


class ConnectionAdmission(NamedTuple):
    """The outcome for a new connection. One with a `refusal` is open only until its protocol has said why."""

    network: str  # "" where addresses are not counted
    refusal: Refusal | None


_UNCOUNTED = ConnectionAdmission("", None)


class ConnectionLimiter:
    """Limits the connections: in all, from one address, and new ones a second."""

    def __init__(self, config: LimitsConfig, connections_max: int, *, now_ms: int) -> None:
        self._connections_max = connections_max
        self._per_address = config.connections_per_address
        self.by_network: dict[str, int] = {}  # those that are in
        self._rate: Bucket | None = None
        if config.connections_per_s:
            self._rate = Bucket(config.connections_per_s, config.connections_burst, now_ms=now_ms)
        self.inside = 0
        self.refusing = 0  # <= REFUSING_COUNT_MAX

    def admit(self, address: str, *, now_ms: int) -> ConnectionAdmission | None:
        """Admits a new connection; None: it is to be cut off without a word, as many are being refused already.

        "" is the address of one that comes from a proxy of ours: `place` will tell.
        """
        network = network_of(address) if self._per_address and address else ""
        refusal = self._judge(network, now_ms)
        if refusal is not None:
            if self.refusing >= REFUSING_COUNT_MAX:
                return None
            self.refusing += 1
            return ConnectionAdmission(network, refusal)
        self.inside += 1
        if self._rate is not None:
            self._rate.take(1, now_ms=now_ms)
        if not network:
            return _UNCOUNTED
        self.by_network[network] = self.by_network.get(network, 0) + 1
        return ConnectionAdmission(network, None)

    def place(self, admission: ConnectionAdmission, address: str) -> ConnectionAdmission:
        """Counts a connection for the address that it turns out to be from. Raises `Refusal` (QUOTA) at the limit."""
        if not self._per_address or admission.network or admission.refusal is not None:
            return admission
        network = network_of(address)
        count = self.by_network.get(network, 0)
        if count >= self._per_address:
            raise self._crowded()
        self.by_network[network] = count + 1
        return ConnectionAdmission(network, None)

    def _crowded(self) -> Refusal:
        return Refusal(Cause.QUOTA, f"{self._per_address} connections of this address are open")

    def release(self, admission: ConnectionAdmission) -> None:
        """Frees the place of a connection that has ended."""
        if admission.refusal is not None:
            self.refusing -= 1
            return
        self.inside -= 1
        if admission.network:
            left = self.by_network.pop(admission.network) - 1
            if left:
                self.by_network[admission.network] = left

    def _judge(self, network: str, now_ms: int) -> Refusal | None:
        if self.inside >= self._connections_max:
            limit = "gateway.connections_max, or less where fewer files may be open"
            return Refusal(Cause.QUOTA, f"{self._connections_max} connections are open ({limit})")
        if network and self.by_network.get(network, 0) >= self._per_address:
            return self._crowded()
        wait_ms = self._rate.wait_ms(now_ms=now_ms, need=1) if self._rate is not None else 0
        return Refusal(Cause.RATE, "too many new connections", retry_after_ms=wait_ms) if wait_ms else None


def network_of(address: str) -> str:
    """Returns the network an address is counted under: of IPv6, where everybody has many addresses, the /64 network."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return parsed.packed[:8].hex()
