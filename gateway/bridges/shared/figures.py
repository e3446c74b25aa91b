"""The figures of a bridge, as its status and metrics show them."""


class Figures:
    """The figures of a bridge; times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self.here = False  # this process runs it
        self.connected = False
        self.connects = 0
        self.stored = 0
        self.refused: dict[str, int] = {}  # by cause
        self.unacknowledged = 0
        self.last_message_s: float | None = None
        self.error = ""  # why it is not connected, or does not go on
        self.forwarded = 0  # confirmed by the upstream
        self.not_forwarded: dict[str, int] = {}  # by cause
        self.unconfirmed = 0  # sent to the upstream, or waiting to be
        self.behind_bytes: int | None = None  # of the log that is furthest; None: it forwards nothing


def count(counts: dict[str, int], cause: str) -> None:
    """Adds one to a cause."""
    counts[cause] = counts.get(cause, 0) + 1
