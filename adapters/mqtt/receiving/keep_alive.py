"""Keep alive (MQTT 5.0, 3.1.2.10): how long a peer may be silent."""


class KeepAlive:
    """The silence of one peer, which may last one and a half intervals."""

    __slots__ = ("interval_ms", "received_ms")

    def __init__(self) -> None:
        self.interval_ms = 0  # 0: it may be silent forever
        self.received_ms = 0  # when input came last

    def limit_ms(self) -> int | None:
        """Returns when the silence is too long; None: never."""
        return self.received_ms + self.interval_ms * 3 // 2 if self.interval_ms else None

    def is_over(self, now_ms: int, *, reading: bool) -> bool:
        """Returns whether the peer has been silent for too long; while nothing is read, it may have said something."""
        if not reading:
            self.received_ms = now_ms
            return False
        return bool(self.interval_ms) and now_ms - self.received_ms >= self.interval_ms * 3 // 2
