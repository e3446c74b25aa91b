"""One budget for bytes that a process holds for peers: of input from connections that are not admitted, for example.

A message's announced size takes nothing; its received bytes do. Where all together hold more than the budget, the
connection that holds most, of the address that holds most, is given up.
"""

from typing import Final, Generic, Protocol, TypeVar

UNAUTHENTICATED_BYTES_MAX: Final = 192 << 20  # of a process; one largest message of a pipe fits twice


class Holder(Protocol):
    """A holder of input: a task, which ends with its connection."""

    def cancel(self) -> object:
        """Cuts the connection off."""


H = TypeVar("H", bound=Holder)


class PeerBudget(Generic[H]):
    """Bytes held, by connection and by the address that it comes from. Belongs to the thread of the event loop."""

    def __init__(self, bytes_max: int = UNAUTHENTICATED_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0  # <= bytes_max
        self.peak_bytes = 0  # the most since `restart_peak`
        self._held: dict[bytes, dict[H, int]] = {}  # by origin; none is empty
        self._totals: dict[bytes, int] = {}  # of each origin

    def hold(self, holder: H, origin: bytes, size_bytes: int) -> None:
        """Notes how much a connection holds now, and cancels those that have to make way, maybe this one."""
        self._set(holder, origin, size_bytes)
        while self.held_bytes > self.bytes_max:
            most = max(self._totals, key=self._totals.__getitem__)
            holders = self._held[most]
            largest = max(holders, key=holders.__getitem__)
            self._set(largest, most, 0)
            largest.cancel()

    def release(self, holder: H, origin: bytes) -> None:
        """Gives back the share of a connection that holds nothing more, or is admitted."""
        self._set(holder, origin, 0)

    def restart_peak(self) -> None:
        """Takes the peak from now on."""
        self.peak_bytes = self.held_bytes

    def _set(self, holder: H, origin: bytes, size_bytes: int) -> None:
        holders = self._held.get(origin)
        before = 0 if holders is None else holders.get(holder, 0)
        if size_bytes == before:
            return
        if holders is None:
            holders = self._held[origin] = {}
        if size_bytes:
            holders[holder] = size_bytes
        else:
            del holders[holder]
        self.held_bytes += size_bytes - before
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self._totals[origin] = self._totals.get(origin, 0) + size_bytes - before
        if not holders:
            del self._held[origin], self._totals[origin]


UNAUTHENTICATED: Final[PeerBudget[Holder]] = PeerBudget()
