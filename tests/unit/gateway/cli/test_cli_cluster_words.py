"""The words of `headgate cluster`: sentences, also where nothing was to be done or something was not there."""

import sys
from types import SimpleNamespace

import msgspec
import pytest
from typer.testing import CliRunner

from controller.api.client import ControllerError, ControllerUnreachable, Group, GroupConfig, Topic, UnknownQueue
from controller.api.commands import (
    AddGroup,
    CloseGroup,
    CloseQueue,
    ConfigureTopic,
    CreateTopic,
    DropQueue,
    ForgetReplica,
    MoveQueue,
    RemoveGroup,
)
from controller.node.local import LocalController
from controller.wire.status import ControllerStatus, MemberStatus
from gateway.cli import commands as cli
from gateway.cli.cluster import cluster as cli_cluster
from gateway.operating.configuring import effects
from gateway.operating.report import ClusterReport, troubles
from gateway.process.child import Child, ChildFailed
from gateway.process.local_cluster import ClusterPlan, LocalCluster

pytestmark = pytest.mark.anyio


def test_a_queue_that_lies_there_already_is_not_moved(monkeypatch):
    topic = Topic(name="a", queues=(25,), groups=(1,))
    monkeypatch.setattr(cli_cluster, "ask", lambda *_: topic)
    result = CliRunner().invoke(cli.app, ["cluster", "topics", "move", "25", "1"])
    assert (result.exit_code, result.output) == (0, "a: queue 25 lies in store group 1 already\n")


async def test_what_is_not_there_is_said_in_a_sentence(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 0)
    await controller.do(CreateTopic(name="a", queues=1))
    await controller.do(AddGroup(number=0, config=GroupConfig()))
    asked = {
        "no topic has a queue 24": controller.do(MoveQueue(number=24, group=0)),
        "there is no store group 7": controller.do(CloseGroup(number=7)),
        "there is no topic 'b'": controller.do(ConfigureTopic(name="b", config={})),
        "queue 16 is the only queue that a writes to": controller.do(CloseQueue(number=16)),
        "queue 16 is open: close it, and drain it": controller.do(DropQueue(number=16)),
        "store group 0 is there with another configuration: change it by groups configure": controller.do(
            AddGroup(number=0, config=GroupConfig(replicas=2, min_in_sync=2))
        ),
        "store group 0 holds the keys and values: it cannot be removed": controller.do(RemoveGroup(number=0)),
        "store group 0 has no replica 99": controller.do(ForgetReplica(group=0, replica=99)),
        "topic 'a' exists with other queues or another configuration": controller.do(CreateTopic(name="a", queues=3)),
    }
    for sentence, work in asked.items():
        with pytest.raises(ControllerError) as caught:
            await work
        assert str(caught.value) == sentence
    await controller.close()


def status_of(id_, role="follower", members=()):
    leader = id_ if role == "leader" else None
    numbers = dict.fromkeys(("term", "applied", "commit", "last", "first", "snapshot"), 1)
    return ControllerStatus(id=id_, role=role, leader=leader, members=members, **numbers)


def test_a_removed_controller_is_not_said_to_lack_a_majority():
    members = (MemberStatus(id=1, address="a:1", node="", learner=False),)
    leading = status_of(1, "leader", members)
    report = ClusterReport({"a:1": leading, "b:1": status_of(2), "c:1": None}, (), {}, ())
    assert troubles(report) == [
        "controller at c:1 does not answer, and is not in the cluster: the configuration names it",
        "controller 2 at b:1 is not in the cluster: stop it",
    ]
    nobody_leads = ClusterReport({"b:1": status_of(2), "c:1": None}, (), {}, ())
    assert troubles(nobody_leads) == [
        "controller at c:1 does not answer",
        "controller 2 at b:1 knows no leader: it is not part of a majority",
    ]


def test_controllers_of_several_clusters_are_named():
    """One with the directory of another cluster led alone: its groups and topics were shown, and no line said why."""
    members = tuple(MemberStatus(id=id_, address=f"{name}:1") for id_, name in ((1, "a"), (2, "b"), (3, "c")))
    following = msgspec.structs.replace(status_of(2), leader=1, cluster="a1")
    leading = msgspec.structs.replace(status_of(1, "leader", members), cluster="a1")
    foreign = msgspec.structs.replace(status_of(3, "leader", members), cluster="f9")
    (trouble,) = troubles(ClusterReport({"a:1": leading, "b:1": following, "c:1": foreign}, (), {}, ()))
    assert trouble.startswith("the controllers are of several clusters, a1 at a:1 and b:1, f9 at c:1: ")
    assert troubles(ClusterReport({"a:1": leading, "b:1": following}, (), {}, ())) == []


def test_a_controller_with_a_full_disk_is_named():
    """It lagged behind the others in the table, and no line said why."""
    members = tuple(MemberStatus(id=id_, address=f"{name}:1") for id_, name in ((1, "a"), (2, "b")))
    full = msgspec.structs.replace(status_of(2), leader=1, full=True)
    report = ClusterReport({"a:1": status_of(1, "leader", members), "b:1": full}, (), {}, ())
    assert troubles(report) == ["controller 2 at b:1 has a full disk: it takes no entries until there is room"]


def test_a_group_that_waits_for_more_replicas_is_said_with_those_it_has():
    before = Group(number=0, config=GroupConfig(), sync_set=(1,))
    after = Group(number=0, config=GroupConfig(min_in_sync=3), sync_set=(1,))
    assert effects(before, after) == [
        "min_in_sync is 3, as soon as the master knows it: with fewer nothing is written; in sync now: 1, so it waits"
    ]


class WaitingCluster(LocalCluster):
    """Processes that are ready when the test says so."""

    def __init__(self, directory):
        super().__init__(ClusterPlan(directory, 1, 1, 1, 1, 1))
        self.troubles = {}

    def trouble(self, name):
        found = self.troubles.get(name)
        return found() if callable(found) else found


def test_a_process_is_waited_for_as_long_as_it_lives_and_it_is_said_which(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.process.supervisor.WAITING_S", 0.01)
    cluster, said = WaitingCluster(tmp_path), []
    cluster.children["store-0-1"] = SimpleNamespace(running=True, log="its log")
    clock = iter(range(0, 10_000_000, 1_000))  # a thousand seconds between two looks
    monkeypatch.setattr("gateway.process.supervisor.time", SimpleNamespace(monotonic=lambda: next(clock)))
    cluster.troubles["store-0-1"] = lambda: "not connected to a master" if len(said) < 3 else None
    looks = cluster.becoming_ready(["store-0-1"], cluster.trouble, timeout_s=None, waiting=said.append)
    assert [name for ready in looks for name in ready] == ["store-0-1"]
    assert said == [{"store-0-1": "not connected to a master"}] * 3
    cluster.troubles["store-0-1"] = "not connected to a master"
    with pytest.raises(ChildFailed, match="not ready in 60 s: store-0-1; see its log"):
        list(cluster.becoming_ready(["store-0-1"], cluster.trouble, timeout_s=60.0))


def test_a_process_that_has_ended_is_not_waited_for(tmp_path):
    cluster = WaitingCluster(tmp_path)
    program = [sys.executable, "-c", "print('a line'); print('the last one')"]
    child = cluster.children["store-0-1"] = Child.start("store-0-1", program, log=tmp_path / "log")
    child.process.wait()
    with pytest.raises(ChildFailed, match="store-0-1 has ended: the last one"):
        list(cluster.becoming_ready(["store-0-1"], cluster.trouble, timeout_s=None))


def test_the_reason_of_a_process_is_what_it_says_itself(tmp_path):
    cluster = LocalCluster(ClusterPlan(tmp_path, 1, 1, 1, 1, 1, 20_000))
    assert cluster.trouble("store-0-1") == "does not answer yet"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UnknownQueue("24"), "headgate: The queue belongs to no topic: 24"),
        (
            ControllerUnreachable(""),
            "headgate: The controllers have not answered in time. The command may",
        ),
        (UnknownQueue("no topic has a queue 24"), "headgate: no topic has a queue 24"),
    ],
)
def test_an_error_that_only_names_something_is_said_in_a_sentence(error, line, capsys):
    assert cli._explain([error]) == 1
    assert capsys.readouterr().err.startswith(line)
