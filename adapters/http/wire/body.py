"""A request's body while it arrives."""


class ArrivingBody:
    """The bytes that have come, which take hardly more memory than they are, however small their parts.

    A body of one part is not copied.
    """

    __slots__ = ("_first", "_more")

    def __init__(self) -> None:
        self._first = b""
        self._more: bytearray | None = None  # the first part too, once there is a second

    def __len__(self) -> int:
        return len(self._first) if self._more is None else len(self._more)

    def add(self, part: bytes) -> None:
        """Adds a part."""
        if self._more is not None:
            self._more += part
        elif self._first:
            self._more = bytearray(self._first)
            self._more += part
            self._first = b""
        else:
            self._first = part

    def take(self) -> bytes:
        """Returns the body, and is empty."""
        whole = self._first if self._more is None else bytes(self._more)
        self._first, self._more = b"", None
        return whole
