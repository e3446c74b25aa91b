"""The plan of a cluster on one machine, and what is shown of one."""

import http.client
import urllib.request
from collections import Counter
from io import StringIO
from pathlib import Path

import msgspec
from rich.console import Console

from controller.api.client import Group, GroupConfig, Replica, Topic
from controller.complaints.messages import Trouble
from controller.elections.registry import GroupRoute, RouteReplica
from gateway.config.config import load
from gateway.operating.report import ClusterReport, document, show
from gateway.process.local_cluster import ClusterPlan, LocalCluster, nodes

PLAN = ClusterPlan(Path("/somewhere"), controllers=3, groups=8, replicas=5, proxies=8, port_offset=50_000 - 10_000)


def test_every_process_has_ports_of_its_own(tmp_path: Path) -> None:
    ports: Counter[int] = Counter()
    for node in nodes(PLAN):
        file = tmp_path / f"{node.name}.toml"
        file.write_text(node.config)
        config = load(file, {})
        taken = [config.admin.port]
        if node.role == "controller":
            taken += [config.controller.port]
        else:
            taken += [config.rpc.port]
        if node.role == "proxy":
            taken += {one.port for one in config.listeners.values()}  # CoAP has one number for UDP and for TCP
        assert node.admin_port == config.admin.port
        assert node.port in taken
        ports.update(taken)
    assert [port for port, count in ports.items() if count > 1] == []


def test_all_name_the_same_controllers_and_each_keeps_its_own(tmp_path: Path) -> None:
    found = {}
    for node in nodes(PLAN._replace(directory=tmp_path)):
        file = tmp_path / f"{node.name}.toml"
        file.write_text(node.config)
        found[node.name] = load(file, {})
    assert {tuple(config.cluster.controllers.items()) for config in found.values()} == {
        tuple((str(id_), address) for id_, address in PLAN.addresses.items())
    }
    assert [found[name].controller.id for name in ("controller-1", "controller-2", "controller-3")] == [1, 2, 3]
    kept = [config.store.data_dir for name, config in found.items() if name.startswith("store")]
    assert len(set(kept)) == len(kept) == 40
    assert found["store-7-5"].store.group == 7
    assert all(config.cluster.node_name == name for name, config in found.items())


GROUP = Group(
    number=1,
    config=GroupConfig(replicas=3, min_in_sync=2),
    replicas=tuple(Replica(id=n, node=f"n{n}", address=f"10.0.0.{n}:8081", learner=n == 4) for n in (1, 2, 3, 4)),
    master=2,
    master_epoch=7,
    sync_set=(2, 3),
    sync_epoch=11,
    next_replica=5,
)
HEARD = GroupRoute(
    group=1,
    master=2,
    master_epoch=7,
    replicas=tuple(
        RouteReplica(
            id=n,
            node=f"n{n}",
            address=f"10.0.0.{n}:8081",
            zone="",
            alive=n != 1,
            in_sync=n in {2, 3},
            learner=n == 4,
            confirmed=1000 - n,
        )
        for n in (1, 2, 3, 4)
    ),
)


def test_what_is_shown_has_masters_sets_epochs_and_lags() -> None:
    topic = Topic(name="t", queues=(16, 17), groups=(1, 1), closed=(17,))
    found = ClusterReport({"10.0.0.9:8082": None}, [GROUP, Group(number=2)], {1: HEARD}, [topic])
    stream = StringIO()
    show(found, Console(file=stream, width=160))
    text = stream.getvalue()
    lines = {line.split("10.0.0.")[1][0]: line for line in text.splitlines() if "10.0.0." in line}
    assert "does not answer" in lines["9"]
    assert "7 (set 11)" in lines["1"]
    assert "behind no heartbeats" in lines["1"]
    assert "master" in lines["2"]
    assert "998" in lines["2"]
    assert "in sync" in lines["3"]
    assert "learner" in lines["4"]
    assert "no replica has registered yet" in text
    assert "being drained: 17" in text
    assert document(found)["groups"][0]["sync_set"] == (2, 3)


def test_a_damaged_replica_is_shown_with_what_is_repaired_from_whom() -> None:
    hurt = {"damages": 2, "damaged_bytes": 700, "lost_bytes": 100, "repairing_from": 2}
    replicas = [msgspec.structs.replace(one, **(hurt if one.id == 3 else {})) for one in HEARD.replicas]
    route = msgspec.structs.replace(HEARD, replicas=tuple(replicas))
    stream = StringIO()
    show(ClusterReport({}, [GROUP], {1: route}, []), Console(file=stream, width=240))
    said = "in sync damaged: 2 ranges, 700 bytes, 100 of them on no replica, repairing from replica 2"
    [line] = [line for line in stream.getvalue().splitlines() if "10.0.0.3" in line]
    assert said in line
    assert stream.getvalue().count(" damaged: ") == 1


def test_a_master_that_is_heard_and_not_reached_is_not_shown_as_if_all_were_well() -> None:
    trouble = Trouble(
        replicas=2, replicas_heard=2, proxies=1, proxies_heard=2, silent_ms=3_400, slow=True, stays="nobody else can"
    )
    stream = StringIO()
    found = ClusterReport({}, [GROUP], {1: msgspec.structs.replace(HEARD, trouble=trouble)}, [])
    show(found, Console(file=stream, width=300))
    [line] = [line for line in stream.getvalue().splitlines() if "10.0.0.2" in line]
    said = "master unreachable for 2 of 2 replicas, 1 of 2 proxies since 3 s its disk is slow stays: nobody else can"
    assert said in line
    assert stream.getvalue().count("unreachable") == 1
    assert document(found)["routes"]["1"]["trouble"]["replicas"] == 2


def test_a_port_where_something_else_answers_is_a_sentence(monkeypatch) -> None:
    def answer(*_: object, **__: object) -> None:
        raise http.client.BadStatusLine("what is this")

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    node = nodes(PLAN)[0]
    at = f"{node.host}:{node.admin_port}"
    assert LocalCluster(PLAN).trouble(node.name) == f"{at} does not answer as an admin page"
