"""AMQP channels that ask beside each other, as many clients do: a server answers one channel's requests in turn."""

from collections.abc import Sequence
from types import TracebackType

from tests.bench.load.amqp.amqp_wire import CHANNEL, CHANNEL_OPEN, CHANNEL_OPEN_OK, Session, method, short
from tests.bench.load.base import together

CONNECTIONS, CHANNELS = 16, 32  # of each connection


class Crowd:
    """Connections with many channels that share requests out among themselves."""

    def __init__(self, ports: Sequence[int], *, host: str = "127.0.0.1") -> None:
        """Connects to ports by turns. Raises as `Session` does."""
        self._sessions = [Session(host, ports[n % len(ports)]) for n in range(CONNECTIONS)]
        for session in self._sessions:
            opens = [method(CHANNEL_OPEN, short(""), CHANNEL + n) for n in range(1, CHANNELS)]
            session.ask(opens, CHANNEL_OPEN_OK)

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for session in self._sessions:
            session.close()

    def ask(self, name: tuple[int, int], arguments: Sequence[bytes], answer: tuple[int, int]) -> float:
        """Sends a request for each of some arguments, one at a time on each channel.

        Returns the seconds to the last answer.
        """
        sessions = self._sessions

        def work(one: int) -> int:
            mine = arguments[one :: len(sessions)]
            requests = [method(name, some, CHANNEL + n % CHANNELS) for n, some in enumerate(mine)]
            sessions[one].ask(requests, answer, under_way=CHANNELS)
            return len(mine)

        _, elapsed_s = together(work, range(len(sessions)))
        return elapsed_s
