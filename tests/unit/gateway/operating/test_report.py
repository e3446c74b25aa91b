"""`headgate cluster status`: the lag of replicas is counted from what readers get."""

import io

from rich.console import Console

from controller.api.client import Group, GroupConfig, Replica
from controller.elections.registry import GroupRoute, RouteReplica
from controller.wire.status import ControllerStatus, MemberStatus
from gateway.operating.report import ClusterReport, show

REPLICAS = tuple(Replica(id=n, node=f"n{n}", address=f"10.0.0.{n}:8081") for n in (1, 2, 3))


def lags(confirmed, *, master=1, sync_set=(1, 2), silent=()):
    group = Group(
        number=0,
        config=GroupConfig(),
        replicas=REPLICAS,
        master=master,
        master_epoch=8,
        sync_set=sync_set,
        sync_epoch=9,
    )
    heard = tuple(
        RouteReplica(
            id=one.id,
            node=one.node,
            address=one.address,
            zone="",
            alive=one.id not in silent,
            in_sync=one.id in sync_set,
            learner=False,
            confirmed=at,
        )
        for one, at in zip(REPLICAS, confirmed, strict=True)
    )
    output = io.StringIO()
    route = GroupRoute(group=0, master=master, master_epoch=8, replicas=heard)
    show(ClusterReport({}, [group], {0: route}, []), Console(file=output, width=200))
    lines = {line.split("10.0.0.")[1][0]: line for line in output.getvalue().splitlines() if "10.0.0." in line}
    return [lines[str(n)].split(str(at))[1].strip() for n, at in zip((1, 2, 3), confirmed, strict=True)]


def test_a_replica_with_what_the_group_has_lost_is_ahead_and_the_master_does_not_lag():
    """The master seemed to lack 20,000 bytes, and the replica that had stopped to follow seemed to have no lag."""
    assert lags((1_000, 990, 21_000)) == ["0", "10", "20000 ahead"]


def test_heartbeats_of_different_moments_show_no_negative_lag():
    assert lags((1_000, 1_005, 900)) == ["0", "0", "100"]
    assert lags((1_000, 1_005, 900), master=None) == ["5", "0", "105"]
    assert lags((1_000, 990, 900), silent=(1,)) == ["", "0", "90"]


def test_a_controller_with_an_empty_directory_does_not_vote():
    """It was said to vote, by the membership of another one, and the cluster's id had an empty one beside it."""
    members = tuple([MemberStatus(id=id_, address=f"c{id_}:1") for id_ in (1, 2)])
    numbers = dict.fromkeys(("term", "applied", "commit", "last", "first", "snapshot"), 1)
    knows = ControllerStatus(id=1, role="pre-candidate", leader=None, members=members, cluster="abc", **numbers)
    empty = ControllerStatus(id=2, role="follower", leader=None, members=(), **numbers)
    output = io.StringIO()
    show(ClusterReport({"c1:1": knows, "c2:1": empty, "c3:1": None}, (), {}, ()), Console(file=output, width=200))
    lines = [line.split() for line in output.getvalue().splitlines()]
    votes = {line[1]: line[-1] for line in lines if len(line) > 1 and line[1].startswith("c")}
    assert (votes["c1:1"], votes["c2:1"]) == ("yes", "no")
    assert "cluster abc; topics: 0, with 0 queues" in output.getvalue()
