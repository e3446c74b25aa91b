"""Arithmetic of majorities."""

import enum
from collections.abc import Collection, Mapping


class Tally(enum.Enum):
    """The result of a vote so far."""

    OPEN = "open"
    WON = "won"
    LOST = "lost"


def majority_index(indexes: Collection[int]) -> int:
    """Returns the greatest number that a majority of these has reached; 0 of none (paper, 5.3: matchIndex)."""
    return sorted(indexes)[(len(indexes) - 1) // 2] if indexes else 0


def tally(voters: Collection[int], votes: Mapping[int, bool]) -> Tally:
    """Returns the result of a vote so far. Only the votes of these voters count; without voters there is no winner."""
    needed = len(voters) // 2 + 1
    granted = sum(1 for voter in voters if votes.get(voter) is True)
    refused = sum(1 for voter in voters if votes.get(voter) is False)
    if granted >= needed:
        return Tally.WON
    return Tally.LOST if len(voters) - refused < needed else Tally.OPEN
