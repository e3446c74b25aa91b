"""The metadata under any commands in any order: the invariants of groups and queues, idempotence, equal replicas."""

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from controller.api import commands
from controller.api.client import (
    ControllerError,
    Group,
    GroupChanges,
    GroupConfig,
    Member,
    NamedQueue,
    Replica,
    Topic,
    User,
)
from controller.api.commands import decode_command, encode_command
from controller.metadata.groups import majority
from controller.metadata.state import MetadataState
from tests.support.process.examples import examples

GROUPS = st.integers(0, 2)
IDS = st.integers(1, 5)
EPOCH_ERROR = st.sampled_from([0, 0, 0, 0, -1, 1])
NAMES = st.sampled_from(["a", "b", "c"])
TIME = {"time_ms": st.integers(0, 5)}
ROOM = {"queues_max": st.just(40)}
CONFIGS = st.builds(
    GroupConfig,
    replicas=st.integers(1, 3),
    min_in_sync=st.just(1),
    acknowledge=st.sampled_from(["all_in_sync", "quorum", "master"]),
    unclean_election=st.booleans(),
)
CHANGES = st.builds(
    GroupChanges,
    replicas=st.none() | st.integers(1, 3),
    min_in_sync=st.none() | st.just(1),
    acknowledge=st.sampled_from([None, "all_in_sync", "quorum", "master"]),
    unclean_election=st.none() | st.booleans(),
)
REPLICAS = st.builds(
    Replica,
    id=IDS,
    node=NAMES,
    address=NAMES,
    check=st.sampled_from(["x", "x", "x", "y"]),
    learner=st.sampled_from([False, False, True]),
)

# Those that do not depend on what there is; the ones that do are made by rules below.
COMMANDS = st.one_of(
    st.builds(
        commands.CreateTopic,
        name=NAMES,
        queues=st.integers(0, 4),
        config=st.sampled_from([{}, {"retention_ms": 1}]),
        topics_max=st.just(2),
        **ROOM,
        **TIME,
    ),
    st.builds(commands.ConfigureTopic, name=NAMES, config=st.just({"flush": "async"}), **TIME),
    st.builds(commands.DeleteTopic, name=NAMES, **TIME),
    st.builds(commands.GrowTopic, name=NAMES, queues=st.integers(1, 6), group=st.none() | GROUPS, **ROOM, **TIME),
    st.builds(commands.NameQueue, name=NAMES, **ROOM, **TIME),
    st.builds(commands.ForgetQueue, name=NAMES, **TIME),
    st.builds(commands.AddGroup, number=GROUPS, config=CONFIGS, **TIME),
    st.builds(commands.ConfigureGroup, number=GROUPS, config=CHANGES, **TIME),
    st.builds(commands.CloseGroup, number=GROUPS, closed=st.booleans(), **TIME),
    st.builds(commands.RemoveGroup, number=GROUPS, **TIME),
    st.builds(commands.ForgetReplica, group=GROUPS, replica=IDS, **TIME),
    st.builds(commands.RegisterReplica, group=GROUPS, replica=REPLICAS, **TIME),
    st.builds(commands.SetUser, user=st.builds(User, name=NAMES, password=NAMES), **TIME),
    st.builds(commands.DeleteUser, name=NAMES, **TIME),
    st.builds(commands.SetMember, member=st.builds(Member, id=IDS, node=NAMES, address=NAMES), **TIME),
    st.builds(commands.DeleteMember, id=IDS, **TIME),
)


def answer(state, command):
    """Returns a state's answer in a form to compare: a refusal counts by its text."""
    try:
        return state.apply(command)
    except ControllerError as refused:
        return repr(refused)


class Metadata(RuleBasedStateMachine):
    """A state, and another one that applies what the first does, each command twice and from its bytes."""

    def __init__(self):
        super().__init__()
        self.state, self.other = MetadataState(), MetadataState()
        self.masters = {}  # (group, epoch) -> master
        self.newest = {}  # group -> (master epoch, set epoch)
        self.given = {}  # queue number -> who has it
        self.ids = {}  # (group, replica) -> check code
        self.gone = set()  # numbers of groups there were

    def do(self, command):
        before = self.state.snapshot()
        groups = dict(self.state.groups)
        checked = None
        try:
            self.state.check(command)
        except ControllerError as refused:
            checked = repr(refused)
        assert self.state.snapshot() == before, "looking at a command changes nothing"
        first = answer(self.state, command)
        assert (first if isinstance(first, str) else None) == checked
        after = self.state.snapshot()
        if isinstance(first, str):
            assert after == before, "a refusal changes nothing"
        if not isinstance(command, commands.DeleteTopic):
            assert answer(self.state, command) == first, "the same command again answers the same"
            assert self.state.snapshot() == after, "and changes nothing"
        assert answer(self.other, decode_command(encode_command(command))) == first
        assert self.other.snapshot() == after
        self.note(command, first, groups)

    def note(self, command, found, before):
        if isinstance(found, Topic):
            for number in found.queues:
                assert self.given.setdefault(number, found.name) == found.name
        elif isinstance(found, NamedQueue):
            assert self.given.setdefault(number := found.number, (found.name,)) == (found.name,), number
            self.given_named(found)
        elif isinstance(found, Group):
            self.note_group(command, found, before.get(found.number))
        if isinstance(command, commands.RemoveGroup) and not isinstance(found, str):
            self.gone.add(command.number)
        assert not self.gone & set(self.state.groups)

    def given_named(self, queue):
        assert self.state.group_of[queue.number] == queue.group

    def note_group(self, command, group, before):
        epochs = (group.master_epoch, group.sync_epoch)
        assert epochs >= self.newest.get(group.number, (0, 0))
        self.newest[group.number] = epochs
        assert self.masters.setdefault((group.number, group.master_epoch), group.master) == group.master
        for one in group.replicas:
            assert self.ids.setdefault((group.number, one.id), one.check) == one.check
        if before is None or before.sync_set == group.sync_set:
            return
        assert epochs[1] > before.sync_epoch
        if isinstance(command, commands.ElectMaster):
            assert group.sync_set == (group.master,)
            assert not before.sync_set or group.master in before.sync_set or command.unclean

    # ---- rules

    @rule(command=COMMANDS)
    def any_command(self, command):
        self.do(command)

    @rule(group=GROUPS, replica=REPLICAS, next_id=st.sampled_from([True, True, False]))
    def register(self, group, replica, next_id):
        there = self.state.groups.get(group)
        if there is not None and next_id:
            replica = msgspec.structs.replace(replica, id=there.next_replica)
        self.do(commands.RegisterReplica(group=group, replica=replica, time_ms=0))

    @precondition(lambda self: self.state.groups)
    @rule(data=st.data(), late=EPOCH_ERROR, later=EPOCH_ERROR, unclean=st.booleans())
    def elect(self, data, late, later, unclean):
        group = self.state.groups[data.draw(st.sampled_from(sorted(self.state.groups)))]
        candidates = [None, *group.voters, *group.voters, 6]
        ends = st.builds(
            commands.LogEnd,
            replica=st.sampled_from([*group.sync_set, 7]),
            master_epoch=st.just(group.master_epoch),
            log_epoch=st.integers(0, 1),
            log_end=st.integers(0, 2),
        )
        candidate = data.draw(st.sampled_from(candidates))
        known = tuple(data.draw(st.lists(ends, max_size=4)))
        command = commands.ElectMaster(
            group=group.number,
            candidate=candidate,
            master_epoch=group.master_epoch + late,
            sync_epoch=group.sync_epoch + later,
            ends=known,
            unclean=unclean,
            time_ms=0,
        )
        self.do(command)
        after = self.state.groups[group.number]
        elected = after.master_epoch > group.master_epoch and after.master is not None
        if elected and group.sync_set and group.config.acknowledge == "quorum" and not unclean:
            heard = {end.replica: (end.log_epoch, end.log_end) for end in known if end.replica in group.sync_set}
            assert len(heard) >= majority(len(group.sync_set))
            assert heard[after.master] == max(heard.values())
            assert after.sync_set == group.sync_set

    @precondition(lambda self: any(group.master for group in self.state.groups.values()))
    @rule(data=st.data(), late=EPOCH_ERROR, later=EPOCH_ERROR)
    def alter(self, data, late, later):
        with_master = sorted(number for number, group in self.state.groups.items() if group.master is not None)
        group = self.state.groups[data.draw(st.sampled_from(with_master))]
        ids = [group.master, group.master, *(one.id for one in group.replicas), 7]
        new_set = tuple(data.draw(st.lists(st.sampled_from(ids), max_size=4)))
        self.do(
            commands.AlterSyncSet(
                group=group.number,
                master=group.master,
                master_epoch=group.master_epoch + late,
                sync_epoch=group.sync_epoch + later,
                new_set=new_set,
                time_ms=0,
            )
        )

    @precondition(lambda self: self.state.owner)
    @rule(data=st.data(), group=GROUPS, what=st.sampled_from(["close", "move", "move", "drop"]))
    def handle_queue(self, data, group, what):
        number = data.draw(st.sampled_from(sorted({*self.state.owner, *self.given})))
        self.do(
            {
                "close": commands.CloseQueue(number=number, time_ms=0),
                "move": commands.MoveQueue(number=number, group=group, queues_max=40, time_ms=0),
                "drop": commands.DropQueue(number=number, time_ms=0),
            }[what]
        )

    @rule()
    def restart(self):
        self.other = MetadataState.restore(self.state.snapshot())
        assert self.other.snapshot() == self.state.snapshot()

    # ---- invariants

    @invariant()
    def groups_hold_together(self):
        for group in self.state.groups.values():
            assert set(group.sync_set) <= set(group.voters)
            assert list(group.sync_set) == sorted(set(group.sync_set))
            assert group.master is None or group.master in group.sync_set
            assert bool(group.sync_set) == (group.master_epoch > 0)
            assert all(one.id < group.next_replica for one in group.replicas)

    @invariant()
    def queues_hold_together(self):
        state, load = self.state, {}
        placed = {queue.number: queue.group for queue in state.named.values()}
        for topic in state.topics.values():
            assert topic.open
            assert (*topic.open, *topic.closed) == topic.queues
            assert set(topic.moved) <= set(topic.closed)
            assert set(topic.moved.values()) <= set(topic.queues)
            assert all(state.owner[number] == topic.name for number in topic.queues)
            placed |= dict(zip(topic.queues, topic.groups, strict=True))
            for group in topic.groups[: len(topic.open)]:
                load[group] = load.get(group, 0) + 1
        for queue in state.named.values():
            load[queue.group] = load.get(queue.group, 0) + 1
        assert dict(state.group_of) == placed
        assert state._topics.load == load
        assert all(number < state.next_queue for number in placed)
        assert not self.gone & set(placed.values())


Metadata.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestMetadata = Metadata.TestCase
