"""Store groups, their replicas, masters, epochs and SyncStateSets: the part of the metadata that is fenced.

These hold at any time, whatever commands come in whatever order:

- an epoch has one master, and epochs only grow;
- the SyncStateSet is never empty once there was a master, is made of voters, and includes the master;
- no replica outside of it becomes master, unless the group's configuration says that losing data is better than
waiting;
- where a majority acknowledges, the new master has the longest log of the newest epoch among a majority of the set, all
  of whom have promised to take nothing more from the master before, and the set changes by one member at a time.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from controller.api.client import (
    HOME_GROUP,
    ControllerError,
    Group,
    GroupConfig,
    GroupExists,
    GroupNotEmpty,
    NoMaster,
    NotElectable,
    Replica,
    ReplicaIdTaken,
    ReplicaInSync,
    StaleEpoch,
    UnknownGroup,
    UnknownReplica,
    WrongLog,
)
from controller.api.commands import (
    AddGroup,
    AlterSyncSet,
    CloseGroup,
    ConfigureGroup,
    ElectMaster,
    ForgetReplica,
    RegisterReplica,
    RemoveGroup,
    RetireReplica,
)
from controller.api.names import check_name, check_text, listed
from controller.metadata.plans import Change, Plans, no_change

GROUPS_MAX = 1 << 15  # a group's number is in every offset of its log
REPLICAS_MAX = 5  # as configured
VOTERS_MAX = 8  # with those that are to replace others
LEARNERS_MAX = 8  # beside them
TEXT_BYTES_MAX = 255  # a node's name, an address, a zone, a check code, a log's id
PRIORITY_MAX = 1 << 31  # 32 bits with the sign


def majority(count: int) -> int:
    """Returns how many of `count` are more than half."""
    return count // 2 + 1


class GroupTable:
    """All groups, the numbers of those there were, and the plans of the commands about them.

    `has_queues` says whether queues lie in a group, `log_id` makes the id of a group's log, empty while it cannot.
    """

    def __init__(self, has_queues: Callable[[int], bool], log_id: Callable[[int], str]) -> None:
        self._has_queues = has_queues
        self._log_id = log_id
        self.groups: dict[int, Group] = {}
        self.removed: dict[int, None] = {}  # numbers that are never given again: offsets of their logs are in use
        self.plans: Plans = {
            AddGroup: self._add,
            ConfigureGroup: lambda command: self._put(_configured(self._group(command.number), command)),
            CloseGroup: self._close,
            RemoveGroup: self._remove,
            RegisterReplica: lambda command: self._put(_registered(self._group(command.group), command)),
            ForgetReplica: lambda command: self._put(_forgotten(self._group(command.group), command)),
            RetireReplica: lambda command: self._put(_retired(self._group(command.group), command)),
            AlterSyncSet: lambda command: self._put(_altered(self._group(command.group), command)),
            ElectMaster: lambda command: self._put(self._with_log(_elected(self._group(command.group), command))),
        }

    def name_logs(self) -> None:
        """Gives ids to the logs of groups that had a master before there were such."""
        for number, group in self.groups.items():
            if group.sync_set and not group.log:
                self.groups[number] = msgspec.structs.replace(group, log=self._log_id(number))

    def _with_log(self, group: Group) -> Group:
        """Returns the group with its log's id: from the first election on that of its master, or a new one."""
        first = group.replica(group.master) if group.master is not None and not group.log else None
        if first is None:
            return group
        return msgspec.structs.replace(group, log=first.log or self._log_id(group.number))

    def _group(self, number: int) -> Group:
        there = self.groups.get(number)
        if there is None:
            raise UnknownGroup(f"there is no store group {number}")
        return there

    def _put(self, group: Group) -> Change[Group]:
        """Returns the change that makes a group this one."""

        def change() -> Group:
            self.groups[group.number] = group
            return group

        return change

    def _add(self, command: AddGroup) -> Change[Group]:
        there = self.groups.get(command.number)
        if there is not None:
            if there.config != command.config:
                raise GroupExists(
                    f"store group {command.number} is there with another configuration: change it by groups configure"
                )
            return lambda: there
        if command.number in self.removed:
            raise GroupExists(f"there was a store group {command.number}: its number is not given again")
        if not 0 <= command.number < GROUPS_MAX:
            raise ControllerError(f"a group's number is from 0 to {GROUPS_MAX - 1}, not {command.number}")
        _check_config(command.config)
        return self._put(Group(number=command.number, config=command.config))

    def _close(self, command: CloseGroup) -> Change[Group]:
        return self._put(msgspec.structs.replace(self._group(command.number), closed=command.closed))

    def _remove(self, command: RemoveGroup) -> Change[None]:
        if command.number in self.removed:
            return no_change
        self._group(command.number)
        if command.number == HOME_GROUP:
            raise GroupNotEmpty(f"store group {HOME_GROUP} holds the keys and values: it cannot be removed")
        if self._has_queues(command.number):
            raise GroupNotEmpty(
                f"there are queues in store group {command.number}: move its topics' queues to another group and drop "
                "the old ones, and delete its AMQP queues, first"
            )
        return partial(self._forget, command.number)

    def _forget(self, number: int) -> None:
        del self.groups[number]
        self.removed[number] = None


def _configured(group: Group, command: ConfigureGroup) -> Group:
    named = {name: value for name, value in msgspec.structs.asdict(command.config).items() if value is not None}
    config = msgspec.structs.replace(group.config, **named)
    if config == group.config:
        return group
    _check_config(config)
    after = msgspec.structs.replace(group, config=config)
    if config.acknowledge == group.config.acknowledge or not group.sync_set:
        return after
    # A replica that is in sync by the old rule may not be by the new one; the master is by both.
    if group.master is None:
        raise NoMaster(f"store group {group.number} cannot acknowledge differently before it has a master")
    return msgspec.structs.replace(after, sync_set=(group.master,), sync_epoch=group.sync_epoch + 1)


def _registered(group: Group, command: RegisterReplica) -> Group:
    replica = command.replica
    there = group.replica(replica.id)
    if there is None and replica.id != group.next_replica:
        raise ReplicaIdTaken(f"the next id of store group {group.number} is {group.next_replica}, not {replica.id}")
    if there is not None and there.check != replica.check:
        raise ReplicaIdTaken(
            f"replica {replica.id} of store group {group.number} is {there.node}, by another check code"
        )
    _check_replica(replica)
    if replica.learner and replica.id in group.sync_set:
        raise ReplicaInSync(f"replica {replica.id} of store group {group.number} cannot become a learner yet")
    others = _others(group, replica.id)
    if sum(one.learner == replica.learner for one in others) >= (LEARNERS_MAX if replica.learner else VOTERS_MAX):
        raise ControllerError(f"store group {group.number} has as many replicas as it may")
    _check_log(group, replica, others)
    return msgspec.structs.replace(
        group,
        replicas=tuple(sorted((*others, replica), key=lambda one: one.id)),
        next_replica=max(group.next_replica, replica.id + 1),
    )


def _check_log(group: Group, replica: Replica, others: tuple[Replica, ...]) -> None:
    """Checks that a group has one log, also before a replica has brought it. Raises `WrongLog`."""
    mine = f"and that of node {replica.node} is {replica.log}"
    if replica.log and group.log not in {"", replica.log}:
        raise WrongLog(f"the log of store group {group.number} is {group.log}, {mine}")
    if replica.log and not group.log:
        for one in others:
            if one.log not in {"", replica.log}:
                raise WrongLog(
                    f"the log that node {one.node} brings to store group {group.number} is {one.log}, {mine}"
                )


def _forgotten(group: Group, command: ForgetReplica) -> Group:
    _check_known(group, command.replica)
    if command.replica in group.sync_set:
        raise ReplicaInSync(
            f"replica {command.replica} of store group {group.number} is in its SyncStateSet: what it holds may be "
            "nowhere else; retire it, or wait until the master has taken it out"
        )
    return msgspec.structs.replace(group, replicas=_others(group, command.replica))


def _check_known(group: Group, id_: int) -> None:
    """Raises `UnknownReplica` for an id that no replica ever had; one that has left its group had it."""
    if group.replica(id_) is None and id_ >= group.next_replica:
        raise UnknownReplica(f"store group {group.number} has no replica {id_}")


def _retired(group: Group, command: RetireReplica) -> Group:
    number, id_ = group.number, command.replica
    _check_known(group, id_)
    if group.replica(id_) is None:
        return group  # it is retired already
    if id_ == group.master:
        raise ReplicaInSync(f"replica {id_} is master of store group {number}: elect another one first")
    in_sync = tuple(one for one in group.sync_set if one != id_)
    if in_sync != group.sync_set:
        _check_left(group, id_, in_sync, forced=command.forced)
    voters = len(group.voters) - (id_ in group.voters)
    if id_ in group.voters and voters < group.config.min_in_sync and not command.forced:
        raise ReplicaInSync(
            f"store group {number} would keep {voters} of its replicas, and nothing is written with fewer than "
            f"{group.config.min_in_sync} in sync (min_in_sync): start another one first, or lower that"
        )
    return msgspec.structs.replace(
        group,
        replicas=_others(group, id_),
        sync_set=in_sync,
        sync_epoch=group.sync_epoch + (in_sync != group.sync_set),
    )


def _check_left(group: Group, id_: int, in_sync: tuple[int, ...], *, forced: bool) -> None:
    """Checks that the rest of a set has everything and can go on. Raises `ReplicaInSync`."""
    if not in_sync or (group.master is None and group.config.acknowledge != "all_in_sync"):
        raise ReplicaInSync(
            f"replica {id_} of store group {group.number} may have what no other one has: the group needs a master "
            "before it can be retired"
        )
    if len(in_sync) < group.config.min_in_sync and not forced:
        raise ReplicaInSync(
            f"without replica {id_} store group {group.number} has {len(in_sync)} in sync ({listed(in_sync)}), and "
            f"with fewer than {group.config.min_in_sync} (min_in_sync) nothing is written until another one is"
        )


def _others(group: Group, id_: int) -> tuple[Replica, ...]:
    return tuple(one for one in group.replicas if one.id != id_)


def _altered(group: Group, command: AlterSyncSet) -> Group:
    wanted = tuple(sorted(set(command.new_set)))
    if (group.master, group.master_epoch) != (command.master, command.master_epoch):
        raise StaleEpoch(f"the master of store group {group.number} is {group.master} in epoch {group.master_epoch}")
    if group.sync_epoch == command.sync_epoch + 1 and group.sync_set == wanted:
        return group  # this very change
    if group.sync_epoch != command.sync_epoch:
        raise StaleEpoch(f"the SyncStateSet of store group {group.number} is at epoch {group.sync_epoch}")
    if wanted == group.sync_set:
        return group
    if command.master not in wanted:
        raise ControllerError("a SyncStateSet includes the master")
    for id_ in wanted:
        if id_ not in group.voters:
            raise UnknownReplica(f"replica {id_} of store group {group.number} is not one that may be in sync")
    if group.config.acknowledge == "quorum" and len(set(wanted) ^ set(group.sync_set)) > 1:
        raise ControllerError("where a majority acknowledges, the SyncStateSet changes by one member at a time")
    return msgspec.structs.replace(group, sync_set=wanted, sync_epoch=group.sync_epoch + 1)


def _elected(group: Group, command: ElectMaster) -> Group:
    candidate = command.candidate
    done = group.master == candidate and group.master_epoch == command.master_epoch + 1
    if done and (candidate is None or not command.unclean or group.unclean_epoch == group.master_epoch):
        return group  # this very election
    if group.epochs != (command.master_epoch, command.sync_epoch):
        raise StaleEpoch(
            f"store group {group.number} is at epoch {group.master_epoch}, its SyncStateSet at {group.sync_epoch}"
        )
    if candidate is None:
        if group.master is None:
            return group
        return msgspec.structs.replace(
            group, master=None, master_epoch=group.master_epoch + 1, elected_ms=command.time_ms
        )
    keeps_set = _check_candidate(group, candidate, command)
    return msgspec.structs.replace(
        group,
        master=candidate,
        master_epoch=group.master_epoch + 1,
        sync_set=group.sync_set if keeps_set else (candidate,),
        sync_epoch=group.sync_epoch + 1,
        elected_ms=command.time_ms,
        unclean_epoch=group.master_epoch + 1 if command.unclean else group.unclean_epoch,
    )


def _check_candidate(group: Group, candidate: int, command: ElectMaster) -> bool:
    """Returns whether the set stays as it is with this new master. Raises `UnknownReplica`, `NotElectable`."""
    if group.replica(candidate) is None:
        raise UnknownReplica(f"store group {group.number} has no replica {candidate}")
    if candidate not in group.voters:
        raise NotElectable(f"replica {candidate} of store group {group.number} is a learner")
    if not group.sync_set:
        return False
    if command.unclean:
        if not (group.config.unclean_election or command.accepted):
            raise NotElectable(f"store group {group.number} allows no unclean election")
        return False
    if candidate not in group.sync_set:
        raise NotElectable(f"replica {candidate} of store group {group.number} is not in sync")
    if group.config.acknowledge != "quorum":
        return False
    if group.master is not None:
        raise NotElectable(f"store group {group.number} has a master that its replicas still follow")
    _check_longest(group, candidate, command)
    return True


def _check_longest(group: Group, candidate: int, command: ElectMaster) -> None:
    """Raises `NotElectable` unless a majority of the set is known and the candidate's log is the longest of it."""
    ends = {
        end.replica: (end.log_epoch, end.log_end)
        for end in command.ends
        if end.replica in group.sync_set and end.master_epoch == group.master_epoch
    }
    if len(ends) < majority(len(group.sync_set)):
        raise NotElectable(
            f"{len(ends)} of {len(group.sync_set)} logs of store group {group.number} are known: too few"
        )
    if candidate not in ends or ends[candidate] < max(ends.values()):
        raise NotElectable(f"replica {candidate} of store group {group.number} does not have the longest log")


def _check_replica(replica: Replica) -> None:
    for text in (replica.node, replica.address, replica.check):
        check_name(text, TEXT_BYTES_MAX)
    check_text(replica.zone, TEXT_BYTES_MAX, "a zone")
    check_text(replica.log, TEXT_BYTES_MAX, "the id of a log")
    if not -PRIORITY_MAX <= replica.priority < PRIORITY_MAX:
        raise ControllerError(f"a priority has 32 bits: {replica.priority}")


def _check_config(config: GroupConfig) -> None:
    if not 1 <= config.replicas <= REPLICAS_MAX:
        raise ControllerError(f"a group has 1 to {REPLICAS_MAX} replicas, not {config.replicas}")
    if not 1 <= config.min_in_sync <= config.replicas:
        raise ControllerError(
            f"min_in_sync is at least 1 and at most the number of replicas, {config.replicas}, not {config.min_in_sync}"
        )
