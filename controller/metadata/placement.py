"""The placement of queues on groups."""

from collections.abc import Iterable, Mapping, Sequence

from controller.api.client import HOME_GROUP, Group, TopicLimit


def takes_queues(groups: Iterable[Group]) -> tuple[int, ...]:
    """Returns the groups for new queues: those with a master, or all when none has one, but no closed ones.

    A cluster that has said nothing of groups is a single node. Raises `TopicLimit`.
    """
    there = list(groups)
    if not there:
        return (HOME_GROUP,)
    found = [group for group in there if not group.closed]
    if not found:
        raise TopicLimit("no group takes new queues: all are closed")
    return tuple(group.number for group in found if group.master is not None) or tuple(group.number for group in found)


def place(count: int, groups: Sequence[int], load: Mapping[int, int]) -> tuple[int, ...]:
    """Returns a group for each of `count` queues: all in turn, so that a topic is spread, the least loaded first."""
    if len(groups) == 1:
        return tuple(groups) * count
    if count == 1:
        return (min(groups, key=lambda group: (load.get(group, 0), group)),)
    order = sorted(groups, key=lambda group: (load.get(group, 0), group))
    return tuple(order[n % len(order)] for n in range(count))
