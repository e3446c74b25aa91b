"""Topics and queues on groups: where they are placed, and how they are moved, closed and dropped."""

import pytest

from controller.api.client import (
    ControllerError,
    GroupConfig,
    GroupNotEmpty,
    QueueClosed,
    Replica,
    Topic,
    TopicExists,
    TopicLimit,
    UnknownGroup,
    UnknownQueue,
    UnknownTopic,
)
from controller.api.commands import (
    AddGroup,
    CloseGroup,
    CloseQueue,
    CreateTopic,
    DeleteTopic,
    DropQueue,
    ElectMaster,
    ForgetQueue,
    GrowTopic,
    MoveQueue,
    NameQueue,
    RegisterReplica,
    RemoveGroup,
)
from controller.metadata.placement import place
from controller.metadata.state import MetadataState


def with_groups(*numbers):
    """Returns a state with these groups, each with a master."""
    state = MetadataState()
    for number in numbers:
        add(state, number)
    return state


def add(state, number, *, master=True):
    state.apply(AddGroup(number=number, config=GroupConfig(), time_ms=0))
    replica = Replica(id=1, node="n", address="n:1", check="c")
    state.apply(RegisterReplica(group=number, replica=replica, time_ms=0))
    if master:
        state.apply(ElectMaster(group=number, candidate=1, master_epoch=0, sync_epoch=0, time_ms=0))


def create(state, name, queues, **changes):
    return state.apply(
        CreateTopic(**{"name": name, "queues": queues, "topics_max": 99, "queues_max": 99, "time_ms": 0} | changes)
    )


def grow(state, name, queues, group=None, queues_max=99):
    return state.apply(GrowTopic(name=name, queues=queues, group=group, queues_max=queues_max, time_ms=0))


def move(state, number, group):
    return state.apply(MoveQueue(number=number, group=group, queues_max=99, time_ms=0))


def close(state, number):
    return state.apply(CloseQueue(number=number, time_ms=0))


def drop(state, number):
    return state.apply(DropQueue(number=number, time_ms=0))


def name(state, queue):
    return state.apply(NameQueue(name=queue, queues_max=99, time_ms=0))


def test_a_topic_is_dealt_to_all_groups_the_least_loaded_first():
    assert place(5, (0, 1, 2), {0: 3, 1: 1}) == (2, 1, 0, 2, 1)
    assert place(1, (0, 1, 2), {0: 1, 1: 1, 2: 1}) == (0,)
    assert place(3, (7,), {}) == (7, 7, 7)
    state = with_groups(0, 1)
    assert create(state, "a", 3).groups == (0, 1, 0)
    assert create(state, "b", 3).groups == (1, 0, 1)
    assert name(state, "q").group == 0


def test_named_queues_count_as_load_until_they_are_forgotten():
    state = with_groups(0, 1)
    assert [name(state, f"q{n}").group for n in range(4)] == [0, 1, 0, 1]
    state.apply(ForgetQueue(name="q1", time_ms=0))
    state.apply(ForgetQueue(name="q3", time_ms=0))
    assert [name(state, f"r{n}").group for n in range(2)] == [1, 1]
    assert name(state, "r0").number == 20


def test_new_queues_go_where_there_is_a_master_and_never_to_a_closed_group():
    state = with_groups(0)
    add(state, 1, master=False)
    assert create(state, "a", 2).groups == (0, 0)
    state.apply(ElectMaster(group=1, candidate=1, master_epoch=0, sync_epoch=0, time_ms=0))
    assert create(state, "b", 2).groups == (1, 0)
    state.apply(CloseGroup(number=1, closed=True, time_ms=0))
    assert create(state, "c", 2).groups == (0, 0)
    with pytest.raises(TopicLimit, match="closed"):
        grow(state, "c", 3, group=1)
    state.apply(CloseGroup(number=0, closed=True, time_ms=0))
    with pytest.raises(TopicLimit, match="all are closed"):
        name(state, "q")
    state.apply(CloseGroup(number=1, closed=False, time_ms=0))
    assert name(state, "q").group == 1


def test_groups_without_any_master_take_queues_all_the_same():
    state = MetadataState()
    add(state, 0, master=False)
    add(state, 1, master=False)
    assert create(state, "a", 2).groups == (0, 1)


def test_a_topic_grows_onto_a_new_group_and_not_twice():
    state = with_groups(0)
    create(state, "a", 2)
    add(state, 5)
    grown = grow(state, "a", 4)
    assert (grown.queues, grown.groups) == ((16, 17, 18, 19), (0, 0, 5, 0))
    assert grow(state, "a", 4) == grown
    assert grow(state, "a", 3) == grown
    assert grow(state, "a", 5, group=5).groups == (0, 0, 5, 0, 5)
    with pytest.raises(UnknownGroup):
        grow(state, "a", 6, group=6)
    with pytest.raises(UnknownTopic):
        grow(state, "b", 6)
    with pytest.raises(TopicLimit):
        grow(state, "a", 6, queues_max=5)
    with pytest.raises(ControllerError):
        grow(state, "a", 1025)


def test_scale_in_takes_the_right_to_write_then_drains_then_takes_the_right_to_read():
    state = with_groups(0)
    create(state, "a", 3)
    with pytest.raises(QueueClosed, match="drain"):
        drop(state, 17)
    closed = close(state, 17)
    assert (closed.open, closed.queues, closed.closed) == ((16, 18), (16, 18, 17), (17,))
    assert close(state, 17) == closed
    assert state.owner[17] == "a"
    assert state.group_of[17] == 0
    assert drop(state, 17) is None
    assert drop(state, 17) is None
    assert state.topics["a"] == Topic(name="a", queues=(16, 18))
    assert 17 not in state.owner
    assert 17 not in state.group_of
    close(state, 16)
    with pytest.raises(QueueClosed, match="only queue"):
        close(state, 18)
    with pytest.raises(UnknownQueue):
        close(state, 17)
    assert grow(state, "a", 2).queues == (18, 19, 16)


def test_a_moved_queue_is_closed_and_its_keys_find_the_new_one_in_its_place():
    state = with_groups(0, 1)
    create(state, "a", 3)
    moved = move(state, 16, 1)
    assert moved == Topic(name="a", queues=(19, 17, 18, 16), groups=(1, 1, 0, 0), closed=(16,), moved={16: 19})
    assert moved.open == (19, 17, 18)
    assert move(state, 16, 1) == moved
    assert move(state, 19, 1) == moved
    with pytest.raises(QueueClosed):
        move(state, 16, 0)
    again = move(state, 19, 0)
    assert (again.open, again.closed, again.moved) == ((20, 17, 18), (16, 19), {16: 19, 19: 20})
    drop(state, 19)
    assert state.topics["a"].moved == {16: 20}
    drop(state, 16)
    assert state.topics["a"] == Topic(name="a", queues=(20, 17, 18), groups=(0, 1, 0))
    with pytest.raises(UnknownGroup):
        move(state, 17, 9)
    with pytest.raises(UnknownQueue):
        move(state, 16, 1)


def test_creating_what_was_moved_still_agrees():
    state = with_groups(0, 1)
    create(state, "a", 2)
    moved = move(state, 16, 1)
    assert create(state, "a", 2) == moved
    close(state, 17)
    with pytest.raises(TopicExists):
        create(state, "a", 2)


def test_a_group_is_removed_when_nothing_lies_in_it_and_its_number_is_not_given_again():
    state = with_groups(0, 1)
    create(state, "a", 2)
    queue = name(state, "p"), name(state, "q")
    assert [one.group for one in queue] == [0, 1]
    remove = RemoveGroup(number=1, time_ms=0)
    state.apply(CloseGroup(number=1, closed=True, time_ms=0))
    for empty in (
        lambda: move(state, 17, 0),
        lambda: drop(state, 17),
        lambda: state.apply(ForgetQueue(name="q", time_ms=0)),
    ):
        with pytest.raises(GroupNotEmpty):
            state.apply(remove)
        empty()
    assert state.apply(remove) is None
    assert state.apply(remove) is None
    assert sorted(state.groups) == [0]
    again = MetadataState.restore(state.snapshot())
    for one in (state, again):
        with pytest.raises(ControllerError, match="not given again"):
            one.apply(AddGroup(number=1, config=GroupConfig(), time_ms=0))
    with pytest.raises(GroupNotEmpty, match="keys and values"):
        state.apply(RemoveGroup(number=0, time_ms=0))
    with pytest.raises(UnknownGroup):
        state.apply(RemoveGroup(number=2, time_ms=0))


def test_a_deleted_topic_leaves_no_load_behind():
    state = with_groups(0, 1)
    create(state, "a", 5)
    close(state, 16)
    state.apply(DeleteTopic(name="a", time_ms=0))
    assert not state.group_of
    assert not state.owner
    state.apply(RemoveGroup(number=1, time_ms=0))


def test_closed_queues_count_as_queues():
    state = with_groups(0, 1)
    create(state, "a", 2, queues_max=3)
    state.apply(MoveQueue(number=16, group=1, queues_max=3, time_ms=0))
    with pytest.raises(TopicLimit):
        state.apply(MoveQueue(number=17, group=0, queues_max=3, time_ms=0))


@pytest.mark.parametrize("wrong", [{"groups": (0,)}, {"closed": (16,)}])
def test_a_topic_that_contradicts_itself_is_none(wrong):
    with pytest.raises(ValueError, match=r"groups|closed"):
        Topic(name="a", queues=(16, 17), **wrong)


@pytest.mark.parametrize("wrong", ["", "x" * 256, "\ud800"])
def test_names_are_text_and_not_too_long(wrong):
    for command in (lambda s: create(s, wrong, 1), lambda s: name(s, wrong)):
        with pytest.raises(ControllerError):
            command(MetadataState())


def test_a_creator_has_a_share_of_the_topics_for_as_long_as_they_are_there():
    state = with_groups(0)
    share = {"queues": 1, "creator_topics_max": 2}
    for name_ in ("a", "b"):
        assert create(state, name_, creator="user eve", **share).creator == "user eve"
    with pytest.raises(TopicLimit, match="topics_per_user_max"):
        create(state, "c", creator="user eve", **share)
    assert create(state, "b", creator="user eve", **share).name == "b", "what is there costs nothing"
    for creator in ("user bob", "anybody", ""):
        create(state, f"of {creator}", creator=creator, **share)
    create(state, "more", creator="user eve", queues=1, creator_topics_max=0)
    restored = MetadataState.restore(state.snapshot())
    for one in (state, restored):
        with pytest.raises(TopicLimit):
            create(one, "c", creator="user eve", **share)
        for name_ in ("a", "more"):
            one.apply(DeleteTopic(name=name_, time_ms=0))
        assert grow(one, "b", 2).creator == "user eve"
        create(one, "c", creator="user eve", **share)
    assert state.snapshot() == restored.snapshot()


def test_a_creator_is_a_text_of_some_length():
    state = with_groups(0)
    for creator in ("x" * 321, "\ud800"):
        with pytest.raises(ControllerError):
            create(state, "a", 1, creator=creator)
