"""The owner of a topic that publishing creates: each user has a share of the topics that there may be."""

from collections.abc import Callable
from typing import Final

from gateway.domain.errors import Refusal
from gateway.domain.principal import Principal

ANYBODY: Final = "anybody"  # has one share: all without a name, and guests, whose password is public
REMEMBERED_S: Final = 1.0  # how long the controllers are not asked again for a creator whose share is used up
REMEMBERED_COUNT_MAX: Final = 1_000  # creators; beyond, all are forgotten


class UsedShares:
    """Creators refused a topic a moment ago: all of a process's input waits while the controllers are asked again.

    `clock` counts seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[str, tuple[float, Refusal]] = {}  # until when, and why; len <= REMEMBERED_COUNT_MAX

    def note(self, creator: str, refusal: Refusal) -> Refusal:
        """Notes that a creator was refused a topic, and returns the refusal."""
        if creator:
            if len(self._used) >= REMEMBERED_COUNT_MAX:
                self._used.clear()
            self._used[creator] = self._clock() + REMEMBERED_S, refusal
        return refusal

    def refusal(self, creator: str) -> Refusal | None:
        """Returns why a creator is refused one more without asking, None where that is to be asked."""
        until_s, refusal = self._used.get(creator, (0.0, None))
        return refusal if self._clock() < until_s else None


def creator_of(principal: Principal | None) -> str:
    """Returns the name under which the topics of a publish are counted, "" for the gateway's own, which has no share.

    `principal` publishes: that of the effect, or else the publisher's own.
    """
    if principal is None:
        return ""
    return ANYBODY if principal.anonymous or principal.guest else f"user {principal.name}"
