"""The two times of a socket: the one by which its exchanges last, and the wall clock's."""


class SocketTime:
    """The lead of the wall clock over the time of exchanges, which goes on as before when the clock is set.

    Everything of a socket that lasts for a while, or waits, goes by the time of exchanges. Messages are stored with the
    wall clock's, and expire by it.
    """

    __slots__ = ("_ahead_ms",)

    def __init__(self) -> None:
        self._ahead_ms = 0

    def clock_set(self, by_ms: int) -> None:
        """Notes that the wall clock was set, ahead or back."""
        self._ahead_ms += by_ms

    def steady_ms(self, wall_ms: int) -> int:
        """Returns a wall time as time of exchanges."""
        return wall_ms - self._ahead_ms

    def wall_ms(self, steady_ms: int) -> int:
        """Returns a time of exchanges as wall time."""
        return steady_ms + self._ahead_ms
