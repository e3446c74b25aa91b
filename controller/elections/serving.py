"""The leader's statement on whether a group is served, by which proxies decide what neither side can see.

A proxy that cannot reach the keys that say who owns what does not know whether others can. A proxy that reaches them
cannot know whether another proxy, which it cannot reach, still serves. So both ask here. A proxy that was told that a
group is not served may go on for `OUTAGE_LEASE_MS` from when it asked. A proxy that was told that the group is served,
and has been said to be for as long, may take over: no proxy holds an outage lease any more then. For that, only the
order of the answers counts, not whether they are true.

A new leader does not know the answers of the one before, so it is sure of nothing for that time. A leader's answer is
sent when it is confirmed that it still leads: so the next leader begins later than that.
"""

from controller.api.client import Group, Service
from controller.elections.registry import Registry


class Serving:
    """The answers of one leader. `now_ms` is the registry's clock."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._since_ms = 0  # when it began to lead
        self._denied_ms: dict[int, int] = {}  # group -> when it was last said not to be served; groups are few

    def began(self, now_ms: int) -> None:
        """Begins as leader."""
        self._since_ms = now_ms
        self._denied_ms.clear()

    def ask(self, number: int, group: Group | None, now_ms: int) -> Service:
        """Returns whether a group is served, and for how long no proxy was told otherwise."""
        served = self._is_served(group, now_ms)
        if not served:
            self._denied_ms[number] = now_ms
        since_ms = max(self._since_ms, self._denied_ms.get(number, self._since_ms))
        room = () if group is None else tuple(id_ for id_ in group.sync_set if self._has_room(group, id_, now_ms))
        return Service(number=number, served=served, sure_ms=now_ms - since_ms, room=room)

    def _has_room(self, group: Group, id_: int, now_ms: int) -> bool:
        heartbeat = self._registry.heartbeat_if_alive(group.number, id_, now_ms)
        return heartbeat is not None and not (heartbeat.full or heartbeat.slow or heartbeat.expired)

    def _is_served(self, group: Group | None, now_ms: int) -> bool:
        heartbeat = (
            None
            if group is None or group.master is None
            else self._registry.heartbeat_if_alive(group.number, group.master, now_ms)
        )
        return (
            group is not None
            and heartbeat is not None
            and heartbeat.master
            and heartbeat.master_epoch >= group.master_epoch
            and not heartbeat.stalled
            and not self._registry.complaints.is_out_of_reach(group, self._registry.voters(group, now_ms), now_ms)
        )
