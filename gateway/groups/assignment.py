"""Assigns the queues of a topic to the members of a consumer group: pure, with the same result wherever it is computed.

Members and queues are sorted before anything else, so that their order has no effect. Each queue has one member, as
long as the group has any.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Final, TypeAlias

from gateway.domain.address import hash64

VIRTUAL_NODES: Final = 10  # points of each member on the ring
RINGS_COUNT_MAX, PLACES_COUNT_MAX = 64, 1 << 14  # remembered: they are asked for again and again

Assignment: TypeAlias = dict[str, tuple[int, ...]]  # by member, ascending; every member is there


def averaged(queues: Iterable[int], members: Iterable[str]) -> Assignment:
    """Assigns blocks of neighbouring queues, the first ones longer by one where they do not come out even."""
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
    """Assigns each queue to the first member behind it on a ring.

    A member that leaves gives up its own queues and no others move; one that joins takes some and no others move.
    """
    names = tuple(sorted(set(members)))
    if not names:
        return {}
    points, owners = _ring(names, virtual_nodes)
    found: dict[str, list[int]] = {name: [] for name in names}
    for queue in sorted(set(queues)):
        found[owners[bisect_left(points, _place(queue)) % len(owners)]].append(queue)
    return {name: tuple(some) for name, some in found.items()}


@lru_cache(maxsize=RINGS_COUNT_MAX)
def _ring(names: tuple[str, ...], virtual_nodes: int) -> tuple[list[int], list[str]]:
    """Returns the points of members, ascending, and whose they are. Of two that share one the name decides."""
    ring = sorted((hash64(f"{name}#{n}"), name) for name in names for n in range(virtual_nodes))
    return [point for point, _ in ring], [name for _, name in ring]


@lru_cache(maxsize=PLACES_COUNT_MAX)
def _place(queue: int) -> int:
    """Returns the place of a queue on any ring."""
    return hash64(f"queue#{queue}")


STRATEGIES: Final = MappingProxyType[str, Callable[[Iterable[int], Iterable[str]], Assignment]](
    {"averaged": averaged, "consistent_hash": consistent_hash}
)
