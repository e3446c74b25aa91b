"""The reasons in /readyz of each role, state by state."""

import asyncio
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from controller.api.client import Group, GroupConfig, Replica
from gateway.config.config import Config, StoreConfig
from gateway.process.app import Gateway
from gateway.process.backend import ClusterBackend, LocalBackend
from gateway.process.nodes import store_settings
from gateway.process.workers import Workers
from store.base.errors import StoreFailed
from store.local.local import LocalStore
from store.node.master_role import MasterRole
from store.node.replica_role import ReplicaRole
from store.node.run import _Process
from store.replication.errors import NotEnoughInSync, SwitchingOver

pytestmark = pytest.mark.anyio

FULL = "the disk is full: nothing is written until it has room (store.disk_reserve_bytes)"
FORGOTTEN = "the controllers have forgotten committed metadata, up to entry 7: nothing of them is believed"
GROUP = Group(
    number=0,
    config=GroupConfig(replicas=2),
    replicas=tuple(Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1") for id_ in (1, 2)),
    master=1,
    master_epoch=1,
    sync_set=(1,),
    next_replica=3,
)


# ---- a store


def role(kind, **state):
    """Returns a role of a node in this state."""
    found = Mock(spec=kind)
    found.core = SimpleNamespace(refusal=None, diverged=None)
    for name, value in state.items():
        setattr(found, name, value)
    return found


def master(refusal=None, **state):
    return role(MasterRole, **({"serving": True, "core": SimpleNamespace(refusal=refusal)} | state))


def store_process(**state):
    """Returns a store process whose node has this state; else it is a replica in sync."""
    failed = asyncio.get_running_loop().create_future()
    if (error := state.pop("error", None)) is not None:
        failed.set_result(error)
    process = _Process(store_settings(Config(store=StoreConfig(group=0))))
    process.controller = SimpleNamespace(distrust=state.pop("distrust", ""), group=lambda _: state.get("known", GROUP))
    process._stopping = state.pop("stopping", False)
    node = {
        "failed": failed,
        "identity": SimpleNamespace(id=1),
        "group": GROUP,
        "withdrawn": "",
        "role": role(ReplicaRole, streaming=True),
        "disk": SimpleNamespace(full=state.pop("full", False)),
        "repairer": None,
    }
    process.node = SimpleNamespace(**node | {name: value for name, value in state.items() if name in node})
    return process


@pytest.fixture(autouse=True)
def never_diverged(monkeypatch):
    monkeypatch.setattr("store.node.run.why_diverged", lambda _core: "")


@pytest.mark.parametrize(
    ("state", "reasons"),
    [
        ({}, ()),
        ({"role": master()}, ()),
        ({"role": master(NotEnoughInSync(1, 2))}, (f"writes are refused: {NotEnoughInSync(1, 2)}",)),
        ({"role": master(SwitchingOver(2))}, (f"writes are refused: {SwitchingOver(2)}",)),
        ({"role": master(serving=False)}, ("about to be the master",)),
        ({"role": master(), "full": True}, (FULL,)),
        ({"full": True}, (FULL,)),
        ({"role": None}, ("not connected to a master",)),
        ({"role": role(ReplicaRole, streaming=False)}, ("not connected to a master",)),
        ({"identity": SimpleNamespace(id=2)}, ("not in sync yet: catching up with the master",)),
        ({"distrust": FORGOTTEN}, (FORGOTTEN,)),
        ({"distrust": FORGOTTEN, "role": None, "full": True}, (FORGOTTEN, "not connected to a master", FULL)),
        ({"withdrawn": "two have the directory"}, ("two have the directory",)),
        ({"error": StoreFailed("EIO")}, ("the store has failed: EIO",)),
        ({"error": StoreFailed("EIO"), "full": True}, ("the store has failed: EIO",)),
        ({"known": None}, ("store group 0 was removed from the cluster: stop this store",)),
        ({"stopping": True}, ("shutting down",)),
    ],
)
async def test_a_store_says_why_it_does_not_serve(state, reasons):
    said = store_process(**state).ready()
    assert (said.reasons, said.ready) == (reasons, not reasons)
    assert said.alive == ("error" not in state)


# ---- a gateway


def gateway(backend, **state):
    """Returns the part of a gateway that says whether it is ready."""
    of = {"_stopping": False, "_open": True, "_servers": [], "_sockets": [], "backend": backend}
    return SimpleNamespace(**of | state)


def backend_of(kind, troubles=()):
    return Mock(spec=kind, troubles=lambda: list(troubles), warnings=list, alive=True)


UP, DOWN = SimpleNamespace(is_serving=lambda: True), SimpleNamespace(is_serving=lambda: False)


@pytest.mark.parametrize("kind", [LocalBackend, ClusterBackend])
@pytest.mark.parametrize(
    ("state", "reasons"),
    [
        ({"_servers": [UP], "_sockets": [SimpleNamespace(gone=False)]}, ()),
        ({"_servers": [UP, DOWN]}, ("a listener is down",)),
        ({"_sockets": [SimpleNamespace(gone=True)]}, ("a listener is down",)),
        ({"_open": False}, ("starting",)),
        ({"_stopping": True, "_servers": [DOWN]}, ("shutting down",)),
    ],
)
async def test_a_gateway_says_why_it_does_not_serve(kind, state, reasons):
    said = Gateway.ready(gateway(backend_of(kind), **state))
    assert (said.reasons, said.ready) == (reasons, not reasons)
    more = Gateway.ready(gateway(backend_of(kind, ["the backend does not serve"]), **state))
    assert not more.ready
    assert "the backend does not serve" in more.reasons


async def test_a_single_node_with_a_full_disk_is_not_ready(tmp_path):
    controller = SimpleNamespace(trouble=None, error=None, topics=list)
    async with await LocalStore.open(tmp_path, disk_reserve_bytes=1 << 60) as store:
        said = Gateway.ready(gateway(LocalBackend(Config(), store, controller)))
        shared = Workers.ready(
            SimpleNamespace(
                _stopping=False,
                _open=True,
                _base=SimpleNamespace(
                    troubles=lambda: LocalBackend(Config(), store, controller).troubles(), warnings=list, alive=True
                ),
                _pool=SimpleNamespace(workers=[SimpleNamespace(ready=True, troubles=[], name="w")]),
            )
        )
    for one in (said, shared):
        assert not one.ready
        (reason,) = one.reasons
        assert reason.startswith(f"{FULL}: ")
        assert reason.endswith(" are kept in reserve")


@pytest.mark.parametrize("present", [True, False])
@pytest.mark.parametrize("distrust", ["", FORGOTTEN])
async def test_a_proxy_says_that_it_is_not_one_of_the_others_and_that_controllers_have_forgotten(present, distrust):
    backend = Mock(spec=ClusterBackend)
    backend._health = lambda: SimpleNamespace(reasons=(), warnings=())
    backend._proxies = SimpleNamespace(presence=SimpleNamespace(present=present))
    backend._credentials, backend._watch = None, None
    backend.controller = SimpleNamespace(distrust=distrust, connected=True)
    backend.troubles = lambda: ClusterBackend.troubles(backend)
    backend.warnings, backend.alive = list, True
    said = Gateway.ready(gateway(backend))
    alone = "this proxy is not one of the others: sessions are refused"
    assert said.reasons == tuple(filter(None, [distrust, "" if present else alone]))
    assert said.ready == (present and not distrust)


@pytest.mark.parametrize(
    ("connected", "leaderless", "warnings"),
    [
        (True, False, []),
        (True, True, ["the controllers have no leader: no elections, no new topics"]),
        (False, True, ["the controllers have no leader: no elections, no new topics"]),  # between two of them
        (False, False, ["no controller answers: no elections, no new topics"]),
    ],
)
async def test_a_proxy_says_that_no_topic_can_be_made(connected, leaderless, warnings):
    backend = Mock(spec=ClusterBackend)
    backend._health = lambda: SimpleNamespace(reasons=(), warnings=())
    backend._lost, backend._watch, backend._credentials = SimpleNamespace(words=list), None, None
    backend.controller = SimpleNamespace(connected=connected, leaderless=leaderless)
    assert ClusterBackend.warnings(backend) == warnings
