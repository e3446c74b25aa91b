"""Which member of a group reads which queues of its topic: pure, and the same wherever it is computed.

Members and queues are sorted before anything else, so that their order says nothing. Each queue has one member, as long
as there is any.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Final, TypeAlias

from gateway.address import hash64

__all__ = ["STRATEGIES", "VIRTUAL_NODES", "Assignment", "averaged", "consistent_hash"]

VIRTUAL_NODES: Final = 10  # points of each member on the ring

Assignment: TypeAlias = dict[str, tuple[int, ...]]  # by member, ascending; every member is there


def averaged(queues: Iterable[int], members: Iterable[str]) -> Assignment:
    """Blocks of neighbouring queues, the first ones longer by one where they do not come out even."""
    order, names = sorted(set(queues)), sorted(set(members))
    if not names:
        return {}
    size, longer = divmod(len(order), len(names))
    found: Assignment = {}
    at = 0
    for index, name in enumerate(names):
        end = at + size + (index < longer)
        found[name] = tuple(order[at:end])
        at = end
    return found


def consistent_hash(queues: Iterable[int], members: Iterable[str], virtual_nodes: int = VIRTUAL_NODES) -> Assignment:
    """Each queue goes to the first member behind it on a ring.

    A member that leaves gives up its own queues and no others move; one that joins takes some and no others move.
    """
    names = sorted(set(members))
    if not names:
        return {}
    # Two members may share a point, however unlikely: the name decides, whoever was there first.
    ring = sorted((hash64(f"{name}#{n}"), name) for name in names for n in range(virtual_nodes))
    points = [point for point, _ in ring]
    found: dict[str, list[int]] = {name: [] for name in names}
    for queue in sorted(set(queues)):
        at = bisect_left(points, hash64(f"queue#{queue}"))
        found[ring[at % len(ring)][1]].append(queue)
    return {name: tuple(some) for name, some in found.items()}


STRATEGIES: Final = MappingProxyType[str, Callable[[Iterable[int], Iterable[str]], Assignment]](
    {"averaged": averaged, "consistent_hash": consistent_hash}
)
