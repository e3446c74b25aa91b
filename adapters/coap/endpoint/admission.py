"""The question whether anonymous peers are let in, which is asked once for a socket, with its first datagrams."""

from collections.abc import Sequence

from gateway.domain.errors import Refusal
from gateway.port.adapter import Authenticate, Call, Outcome, Peer, Token

PARKED_DATAGRAMS_MAX = 256  # that wait until their peers are let in; peers send dropped ones again


class AnonymousAdmission:
    """The answer for one socket, and the datagrams that wait for it."""

    def __init__(self) -> None:
        self.granted = False
        self.refusal: Refusal | None = None  # the answer to every request
        self.token: Token | None = None  # of the question in flight
        self._parked: list[tuple[bytes, Peer]] = []

    def ask(self, datagrams: Sequence[tuple[bytes, Peer]], token: Token) -> Sequence[Call]:
        """Parks datagrams until it is known; asks, with this token, unless that is in flight."""
        self._parked += datagrams[: PARKED_DATAGRAMS_MAX - len(self._parked)]
        if self.token is not None:
            return ()
        self.token = token
        return (Call(request=Authenticate(mechanism="anonymous"), token=token),)

    def answered(self, outcome: Outcome) -> list[tuple[bytes, Peer]]:
        """Takes the answer; returns the datagrams that have waited for it."""
        self.token = None
        self.granted = outcome.error is None
        self.refusal = outcome.error
        parked, self._parked = self._parked, []
        return parked
