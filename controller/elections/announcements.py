"""The log lines of elections. One that may cost something is logged as critical when it is new, not each time that it
is repeated: a damaged replica is elected again and again while it waits for the repair of its log.
"""

import logging
from collections.abc import Sequence

from controller.api.client import Group
from controller.api.commands import ElectMaster
from controller.api.names import listed
from controller.elections.registry import Heartbeat

logger = logging.getLogger(__name__)


class ElectionAnnouncements:
    """The elections of damaged replicas, as they were logged last, by group."""

    def __init__(self) -> None:
        self._announced: dict[int, tuple[object, ...]] = {}

    def clear(self) -> None:
        """Logs everything anew."""
        self._announced.clear()

    def served(self, group: int) -> None:
        """Notes that a group's master serves: another election of a damaged replica is a new one."""
        self._announced.pop(group, None)

    def electing(self, command: ElectMaster, group: Group, damaged: Heartbeat | None, silent: Sequence[int]) -> None:
        """Logs an election; `damaged` is the candidate's last heartbeat where its log is damaged.

        `silent` are the replicas of the group that send no heartbeats.
        """
        if command.unclean:
            logger.critical(
                "UNCLEAN ELECTION in store group %d: replica %s may lack acknowledged writes; in sync were %s",
                command.group,
                command.candidate,
                listed(group.sync_set),
            )
            return
        announced = () if damaged is None else (command.candidate, damaged.damages, damaged.damaged_bytes, *silent)
        if damaged is None or self._announced.get(command.group) == announced:
            logger.info("store group %d: electing replica %s", command.group, command.candidate)
            return
        self._announced[command.group] = announced
        logger.critical(
            "store group %d: electing replica %s, whose log is damaged in %d ranges, %d bytes, as no sound replica in "
            "sync is alive. It leads when it has repaired what its views have not followed, from any replica%s",
            command.group,
            command.candidate,
            damaged.damages,
            damaged.damaged_bytes,
            _silent(command.group, silent),
        )


def _silent(group: int, silent: Sequence[int]) -> str:
    """Returns the end of a sentence: the replicas that send no heartbeats, and what to do about them."""
    if not silent:
        return ""
    return (
        f"; no heartbeats come from {listed(silent)}: start these, and retire those that are gone for good "
        f"(headgate cluster replicas retire {group} REPLICA)"
    )
