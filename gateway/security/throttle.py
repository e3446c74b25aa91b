"""Addresses that try wrong credentials too often are refused for a while, whatever they offer.

Of IPv6, where a host has many addresses, the /64 network counts.
"""

from collections import OrderedDict

from gateway.domain.errors import Cause, Refusal
from gateway.security.limits import network_of

PERIOD_MS = 60_000
ADDRESSES_COUNT_MAX = 65_536  # remembered; of more, those are forgotten that have failed longest ago


class Throttle:
    """Counts the failures of addresses, a period at a time. `failures_max` is per address and period, 0: no limit."""

    def __init__(self, failures_max: int) -> None:
        self.failures_max = failures_max
        self._failures: OrderedDict[str, tuple[int, int]] = OrderedDict()  # network -> since when, and how many

    def check(self, address: str, *, now_ms: int) -> None:
        """Raises `Refusal` (QUOTA) for an address that has to wait."""
        if not self.failures_max:
            return
        network = network_of(address)
        since_ms, count = self._failures.get(network, (now_ms, 0))
        if since_ms > now_ms:  # the clock was set back
            since_ms = now_ms
            self._failures[network] = since_ms, count
        left_ms = since_ms + PERIOD_MS - now_ms
        if count >= self.failures_max and left_ms > 0:
            raise Refusal(Cause.QUOTA, "too many wrong credentials from this address", retry_after_ms=left_ms)

    def failed(self, address: str, *, now_ms: int) -> None:
        """Notes that wrong credentials came from an address."""
        if not self.failures_max:
            return
        network = network_of(address)
        since_ms, count = self._failures.pop(network, (now_ms, 0))
        if not 0 <= now_ms - since_ms < PERIOD_MS:
            since_ms, count = now_ms, 0
        self._failures[network] = since_ms, count + 1
        if len(self._failures) > ADDRESSES_COUNT_MAX:
            self._failures.popitem(last=False)
