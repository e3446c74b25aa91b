"""The deadlines of a connection: heartbeats, and how long an answer is awaited (AMQP 0-9-1, 4.2.7)."""

from typing import Final

CLOSE_TIMEOUT_MS: Final = 5_000  # for the peer to answer connection.close


class Keepalive:
    """The clock of one connection. All times are ms of the clock that is passed in."""

    def __init__(self, handshake_timeout_s: int) -> None:
        self._handshake_ms = handshake_timeout_s * 1000
        self._heartbeat_ms = 0  # 0: none
        self._received_ms = self._sent_ms = 0
        self._give_up_ms: int | None = None  # the handshake, or the peer's close-ok, is awaited until then
        self.started = False
        self.blocked_until_ms: int | None = None  # connection.blocked is in force
        self.expires_at_ms: int | None = None  # it is not known any more who the peer is

    def start(self, now_ms: int) -> None:
        """Starts the clock as the connection begins."""
        if not self.started:
            self.started = True
            self._received_ms = self._sent_ms = now_ms
            self._give_up_ms = now_ms + self._handshake_ms

    def opened(self, heartbeat_s: int) -> None:
        """Ends the wait for the handshake, and starts the heartbeats."""
        self._heartbeat_ms = heartbeat_s * 1000
        self._give_up_ms = None

    def closing(self, now_ms: int) -> None:
        """Waits for close-ok alone, as connection.close has been sent."""
        self._heartbeat_ms, self.blocked_until_ms, self.expires_at_ms = 0, None, None
        self._give_up_ms = now_ms + CLOSE_TIMEOUT_MS

    def closed(self) -> None:
        """Clears all deadlines."""
        self._heartbeat_ms, self._give_up_ms = 0, None
        self.blocked_until_ms = self.expires_at_ms = None

    def received(self, now_ms: int) -> None:
        """Notes that the peer has sent something, or that its silence does not count."""
        self._received_ms = now_ms
        self._sent_ms = min(self._sent_ms, now_ms)  # the clock may have been set back

    def sent(self, now_ms: int) -> None:
        """Notes that the peer was sent something."""
        self._sent_ms = now_ms

    def gave_up(self, now_ms: int) -> bool:
        """Returns whether the peer has taken too long to answer."""
        return self._give_up_ms is not None and self._give_up_ms <= now_ms

    def expired(self, now_ms: int) -> bool:
        """Returns whether the peer's credentials have expired."""
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    def silent(self, now_ms: int) -> bool:
        """Returns whether the peer has missed two heartbeats."""
        return self._heartbeat_ms > 0 and now_ms - self._received_ms >= 2 * self._heartbeat_ms

    def beat(self, now_ms: int) -> bool:
        """Returns whether it is time for a heartbeat of ours: twice as often as agreed."""
        return self._heartbeat_ms > 0 and now_ms - self._sent_ms >= self._heartbeat_ms // 2

    def deadline_ms(self) -> int | None:
        """Returns the next of all deadlines; None: there is none."""
        if not self.started:
            return 0
        heartbeat_ms = self._heartbeat_ms
        due = min(self._sent_ms + heartbeat_ms // 2, self._received_ms + 2 * heartbeat_ms) if heartbeat_ms else None
        for other in (self._give_up_ms, self.blocked_until_ms, self.expires_at_ms):
            due = earlier(due, other)
        return due


def earlier(due_ms: int | None, other_ms: int | None) -> int | None:
    """Returns the earlier of two times; None stands for never."""
    if due_ms is None or other_ms is None:
        return other_ms if due_ms is None else due_ms
    return min(due_ms, other_ms)
