"""A clock that only a test moves."""

START_MS = 1_700_000_000_000


class Clock:
    """The time that a test sets: `ms` is counted since 1970, and a call returns it, as the system's clock does."""

    def __init__(self, ms: int = START_MS) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms

    def now_ms(self) -> int:
        """Returns the time in ms since 1970."""
        return self.ms

    def now_s(self) -> float:
        """Returns the same time in seconds, for code that asks a monotonic clock."""
        return self.ms / 1_000
