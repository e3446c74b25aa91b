"""The arithmetic of acknowledgements, on its own: the offset that the replicas of a set agree on.

It serves offsets (how much every replica that may be elected has on disk) and rounds (whether each of them still
follows this master) alike.
"""

from collections.abc import Collection, Mapping
from enum import Enum


class Acknowledge(Enum):
    """The condition under which a frame counts as safe; `store` configuration `acknowledge` of a group.

    ALL_IN_SYNC: on disk on every replica of the SyncStateSet, any of which may be elected. QUORUM: on disk on a
    majority of it, and an election needs the logs of a majority. MASTER: answered when it is on the master's disk, and
    lost with the master; readers still see only frames that every replica of the set has.
    """

    ALL_IN_SYNC = "all_in_sync"
    QUORUM = "quorum"
    MASTER = "master"


def needed(size: int, acknowledge: Acknowledge, min_in_sync: int) -> int:
    """Returns how many replicas of a set of `size` have to agree."""
    if acknowledge is Acknowledge.QUORUM:
        return min(max(size // 2 + 1, min_in_sync), size)
    return size


def agreed(
    values: Mapping[int, int], members: Collection[int], acknowledge: Acknowledge, *, min_in_sync: int = 1
) -> int:
    """Returns the greatest value that enough members have reached; a member that is not in `values` has reached 0."""
    reached = sorted((values.get(member, 0) for member in members), reverse=True)
    return reached[needed(len(reached), acknowledge, min_in_sync) - 1]
