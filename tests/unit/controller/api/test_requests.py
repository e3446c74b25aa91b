"""Requests of the controllers: their bytes, which older and newer processes share, and their one table."""

from pathlib import Path

import pytest

from controller.api.client import (
    Group,
    GroupChanges,
    GroupConfig,
    KnownMetadata,
    Member,
    NamedQueue,
    Replica,
    Service,
    Topic,
    User,
    answer_type,
)
from controller.api.commands import (
    COMMANDS,
    AddGroup,
    AlterSyncSet,
    CloseGroup,
    CloseQueue,
    ClusterLimits,
    ConfigureGroup,
    ConfigureTopic,
    CreateTopic,
    DeleteMember,
    DeleteTopic,
    DeleteUser,
    DropQueue,
    ElectMaster,
    ForgetQueue,
    ForgetReplica,
    GrowTopic,
    LogEnd,
    MoveQueue,
    NameCluster,
    NameQueue,
    RaiseQueues,
    RegisterReplica,
    RemoveGroup,
    RetireReplica,
    SetMember,
    SetUser,
)
from controller.api.requests import AddMember, AskService, Barrier, CompareMetadata, Elect, RemoveMember, Transfer
from controller.complaints.messages import Complaint, Report
from controller.metadata.state import MetadataState
from controller.wire.wire import REQUESTS, decode_answer, decode_request, encode, encode_answer

R = Replica(id=3, node="n", address="h:1", priority=2, zone="z", learner=True, check="c", log="l")
REQUESTS_MADE = [
    CreateTopic(
        name="t",
        queues=2,
        config={"retention_ms": 5},
        topics_max=7,
        queues_max=8,
        time_ms=9,
        creator="u",
        creator_topics_max=3,
    ),
    ConfigureTopic(name="t", config={"compact": True}, time_ms=9),
    DeleteTopic(name="t", time_ms=9),
    GrowTopic(name="t", queues=4, group=1, queues_max=8, time_ms=9),
    CloseQueue(number=16, time_ms=9),
    MoveQueue(number=16, group=2, queues_max=8, time_ms=9),
    DropQueue(number=16, time_ms=9),
    NameQueue(name="q", queues_max=8, time_ms=9),
    ForgetQueue(name="q", time_ms=9),
    AddGroup(
        number=4, config=GroupConfig(replicas=3, min_in_sync=2, acknowledge="quorum", unclean_election=True), time_ms=9
    ),
    ConfigureGroup(number=4, config=GroupChanges(min_in_sync=1), time_ms=9),
    CloseGroup(number=4, closed=True, time_ms=9),
    RemoveGroup(number=4, time_ms=9),
    RegisterReplica(group=4, replica=R, time_ms=9),
    ForgetReplica(group=4, replica=3, time_ms=9),
    RetireReplica(group=4, replica=3, forced=True, time_ms=9),
    AlterSyncSet(group=4, master=1, master_epoch=2, sync_epoch=3, new_set=(1, 2), time_ms=9),
    ElectMaster(
        group=4,
        candidate=1,
        master_epoch=2,
        sync_epoch=3,
        ends=(LogEnd(replica=1, master_epoch=2, log_epoch=2, log_end=99),),
        unclean=True,
        accepted=True,
        time_ms=9,
    ),
    NameCluster(id="c0ffee", time_ms=9),
    RaiseQueues(next_queue=99, time_ms=9),
    SetUser(user=User(name="ada", password="h", rights={"otherwise": "deny"}), time_ms=9),
    DeleteUser(name="ada", time_ms=9),
    SetMember(member=Member(id=2, node="n", address="h:2"), time_ms=9),
    DeleteMember(id=2, time_ms=9),
    Elect(group=4, candidate=1, master_epoch=2, sync_epoch=3, unclean=True),
    AddMember(id=2, address="h:2", incarnation="i", kept=True),
    RemoveMember(id=2),
    Transfer(to=2),
    Barrier(),
    CompareMetadata(known=KnownMetadata(7, b"d", 99)),
    AskService(group=4),
    Report(proxy="p", complaints=(Complaint(group=4, epoch=2, silent_ms=3000, met=False, reaches=(1,)),)),
]
BYTES = dict(line.split() for line in Path(__file__).with_name("request_bytes.txt").read_text().splitlines())


@pytest.mark.parametrize("made", REQUESTS_MADE, ids=lambda one: type(one).__name__)
def test_the_bytes_of_a_request_are_those_of_older_versions(made):
    assert encode(made).hex() == BYTES[type(made).__name__]
    assert decode_request(encode(made)) == made


def test_every_request_has_its_bytes_here_and_every_command_its_plan():
    assert set(BYTES) == {kind.__name__ for kind in REQUESTS}
    assert set(MetadataState().plans) == set(COMMANDS)


def test_a_command_names_the_type_of_its_answer():
    assert {answer_type(kind) for kind in REQUESTS} == {Topic, NamedQueue, Group, User, Member, Service, type(None)}
    assert answer_type(CreateTopic) is Topic
    assert answer_type(DropQueue) is type(None)


@pytest.mark.parametrize("answer", [None, Topic(name="t", queues=(16,)), Service(number=0, served=True, sure_ms=4)])
def test_an_answer_comes_back_as_its_type(answer):
    assert decode_answer(encode_answer(answer)) == answer


def test_the_client_fills_in_the_time_and_its_limits():
    limits = ClusterLimits(topics_max=1, topics_per_creator_max=2, queues_max=3, default_queues=4)
    assert CreateTopic(name="t").filled(limits, 9) == CreateTopic(
        name="t", queues=4, topics_max=1, creator_topics_max=2, queues_max=3, time_ms=9
    )
    assert CreateTopic(name="t", queues=5).filled(limits, 9).queues == 5
    assert GrowTopic(name="t", queues=0).filled(limits, 9) == GrowTopic(name="t", queues=0, queues_max=3, time_ms=9)
    assert DeleteUser(name="ada").filled(limits, 9) == DeleteUser(name="ada", time_ms=9)
