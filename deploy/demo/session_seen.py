"""The messages that a session which goes away and comes back has read, and those it may have missed.

MQTT promises a session every message of QoS 1 and 2, also those of its absence. It promises nothing for QoS 0: what was
written to a connection that the client had just left is sent once and lost (MQTT 5.0, 4.3.1). Such a message lies, in
the order of its device, between the last one that was read before an absence and the first one that was read after it.
A message that is missing anywhere else is a loss, whatever its QoS.
"""

from typing import NamedTuple

from deploy.demo.plan import AT_MOST_ONCE, Seen


class _Gap(NamedTuple):
    """Numbers of one device that an absence may have cost: `low` and above, below `high`."""

    low: int
    high: int


class SessionSeen(Seen):
    """A `Seen` with the client's absences. `missed_by_fleet` counts what was sent at QoS 0 to a left connection."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        # Of each device that publishes at QoS 0, the highest number that was read.
        self._highest = {(fleet.encode(), b"%d" % device): -1 for fleet, device in AT_MOST_ONCE}
        self._before: dict[tuple[bytes, bytes], int] = {}  # the same, at the absence that it was not heard after yet
        self._gaps: dict[tuple[bytes, bytes], _Gap] = {}  # by the newest absence
        self._settled: dict[str, int] = {}  # missed in absences before the newest one

    def left(self) -> None:
        """Settles what is missing: the client has left its connection, and nothing more of it is read."""
        for key, gap in self._gaps.items():
            missing = self._missing(key, gap)
            self._count(self._settled, key, len(missing))
            for n in missing:
                self._take(key, n)
        self._gaps.clear()
        self._before = dict(self._highest)

    @property
    def missed_by_fleet(self) -> dict[str, int]:
        """Returns how many messages of QoS 0 each fleet's devices lost to absences."""
        missed = dict(self._settled)
        for key, gap in list(self._gaps.items()):
            self._count(missed, key, len(self._missing(key, gap)))
        return missed

    def found(self, key: tuple[bytes, bytes], n: int) -> None:
        """Notes where an absence ends for a device of QoS 0."""
        reordered = AT_MOST_ONCE.get((key[0].decode(), int(key[1])))
        if reordered is None:
            return
        before = self._before.pop(key, None)
        if before is not None:
            self._gaps[key] = _Gap(max(0, before + 1 - reordered), n + reordered)
        self._highest[key] = max(n, self._highest[key])

    def _missing(self, key: tuple[bytes, bytes], gap: _Gap) -> list[int]:
        floor, above = self._floors.get(key, 0), set(self._above.get(key, ()))
        return [n for n in range(max(gap.low, floor), min(gap.high, self._highest[key])) if n not in above]

    def _count(self, into: dict[str, int], key: tuple[bytes, bytes], missing: int) -> None:
        fleet = key[0].decode()
        into[fleet] = into.get(fleet, 0) + missing
