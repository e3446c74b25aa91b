"""The time for which a peer has said nothing while this process was listening."""

STEP_MS_MAX = 500  # that counts between two ticks: a process that stood still was not listening


class PeerSilence:
    """The silence of one peer. `met`: it has said something since `begin`."""

    def __init__(self) -> None:
        self.ms = 0
        self.met = False
        self._ticked_ms: int | None = None

    def begin(self) -> None:
        """Begins with another peer."""
        self.ms, self.met = 0, False

    def received(self) -> None:
        """Notes that the peer has sent something."""
        self.ms, self.met = 0, True

    def tick(self, now_ms: int) -> None:
        """Takes note that time has passed; to be called several times a second."""
        if self._ticked_ms is not None:
            self.ms += min(max(now_ms - self._ticked_ms, 0), STEP_MS_MAX)
        self._ticked_ms = now_ms
