"""AMQP connections that send requests beside each other, as many clients do: one channel answers in turn."""

from collections.abc import Sequence
from types import TracebackType

from tests.bench.load.amqp.amqp_wire import Session
from tests.bench.load.base import together

CONNECTIONS = 64
UNDER_WAY = 4  # requests of each connection


class Crowd:
    """Connections that share requests out among themselves."""

    def __init__(self, ports: Sequence[int], *, host: str = "127.0.0.1", connections: int = CONNECTIONS) -> None:
        """Connects to ports by turns. Raises as `Session` does."""
        self._sessions = [Session(host, ports[n % len(ports)]) for n in range(connections)]

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for session in self._sessions:
            session.close()

    def ask(self, requests: Sequence[bytes], answer: tuple[int, int]) -> float:
        """Sends all requests, some at a time on each connection; returns the seconds to the last answer."""
        sessions = self._sessions

        def work(one: int) -> int:
            mine = requests[one :: len(sessions)]
            sessions[one].ask(mine, answer, under_way=UNDER_WAY)
            return len(mine)

        _, elapsed_s = together(work, range(len(sessions)))
        return elapsed_s
