"""Agreement on the seals of closed segments: who of a group has other frames than the rest. No input or output."""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import Enum


class SealVerdict(Enum):
    """The conclusion from the digests of one segment."""

    UNKNOWN = "unknown"  # no other replica has answered
    SAME = "same"  # all that have answered have the same
    UNDECIDED = "undecided"  # they differ, and not everybody has answered
    OTHERS = "others"  # another replica has other frames than this one and the rest
    OWN = "own"  # this replica is the one


def judge(
    own: bytes, others: Mapping[int, bytes], *, replica: int, replicas: Collection[int], master: int | None
) -> SealVerdict:
    """Compares a digest with those of other replicas of a group; a replica without just that segment has an empty one.

    The minority has the wrong frames. Where there is none, those are right that the master has. Every replica comes to
    the same verdict, as nothing is decided before all have answered: a sound one could give its frames away.
    """
    votes = {replica: own} | {id_: digest for id_, digest in others.items() if digest}
    if len(votes) == 1:
        return SealVerdict.UNKNOWN
    counts = Counter(votes.values())
    if len(counts) == 1:
        return SealVerdict.SAME
    most = max(counts.values())
    leading = [digest for digest, count in counts.items() if count == most]
    right = leading[0] if len(leading) == 1 else votes.get(master) if master is not None else None
    if right not in leading or not set(replicas) <= others.keys() | {replica}:
        return SealVerdict.UNDECIDED
    return SealVerdict.OTHERS if own == right else SealVerdict.OWN
