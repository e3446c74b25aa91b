"""The controllers' leader says whether a group is served, and how sure it is."""

import asyncio

import pytest

from controller.api.client import OUTAGE_LEASE_MS, Group, GroupConfig, Replica
from controller.api.commands import AddGroup, RegisterReplica
from controller.api.requests import AskService
from controller.elections.registry import DEAD_AFTER_MS, Heartbeat, Registry
from controller.elections.serving import Serving
from controller.node.local import LocalController
from controller.remote.heartbeats import Heartbeats
from tests.support.controller.controllers import Controllers
from tests.support.process.waiting import until

pytestmark = pytest.mark.anyio


def replica(id_):
    return Replica(id=id_, node=f"n{id_}", address=f"n{id_}:1", check="a code")


def said(id_, **what):
    return Heartbeat(
        **{"group": 0, "replica": id_, "node": f"n{id_}", "address": f"n{id_}:1", "master_epoch": 1} | what
    )


GROUP = Group(number=0, replicas=(replica(1), replica(2)), master=1, master_epoch=1, sync_set=(1, 2), sync_epoch=1)


@pytest.fixture
def registry():
    return Registry(0)


@pytest.fixture
def serving(registry):
    found = Serving(registry)
    found.began(0)
    return found


def test_a_master_that_serves_and_is_heard(registry, serving):
    registry.heartbeat(said(1, master=True), 0)
    found = serving.ask(0, GROUP, 1_000)
    assert (found.served, found.sure_ms) == (True, 1_000)


@pytest.mark.parametrize(
    "what",
    [{"master": False}, {"master": True, "stalled": True}, {"master": True, "master_epoch": 0}, {"failed": True}],
)
def test_a_master_that_does_not_serve(registry, serving, what):
    registry.heartbeat(said(1, **what), 0)
    assert not serving.ask(0, GROUP, 0).served


def test_what_was_denied_is_not_sure_for_a_while(registry, serving):
    registry.heartbeat(said(1, master=True), 0)
    assert not serving.ask(0, GROUP, DEAD_AFTER_MS).served
    registry.heartbeat(said(1, master=True), DEAD_AFTER_MS + 500)
    found = serving.ask(0, GROUP, DEAD_AFTER_MS + 600)
    assert (found.served, found.sure_ms) == (True, 600)
    assert serving.ask(1, None, DEAD_AFTER_MS + 600).served is False
    assert serving.ask(0, GROUP, DEAD_AFTER_MS + 700).sure_ms == 700  # another group's is no matter
    serving.began(DEAD_AFTER_MS + 800)
    assert serving.ask(0, GROUP, DEAD_AFTER_MS + 900).sure_ms == 100


@pytest.mark.parametrize("group", [None, Group(number=0)])
def test_nobody_serves_what_is_not_there(serving, group):
    found = serving.ask(0, group, 0)
    assert (found.served, found.room) == (False, ())


def test_room_is_of_replicas_in_sync_that_are_heard(registry, serving):
    registry.heartbeat(said(1, master=True, full=True), 0)
    registry.heartbeat(said(2), 0)
    assert serving.ask(0, GROUP, 100).room == (2,)
    registry.heartbeat(said(2, full=True), 200)
    assert serving.ask(0, GROUP, 300).room == ()


async def test_a_single_node_is_always_served(tmp_path):
    controller = LocalController.open(tmp_path, now_ms=lambda: 0)
    found = await controller.do(AskService(group=0))
    assert (found.served, found.sure_ms) == (True, OUTAGE_LEASE_MS)
    await controller.close()


@pytest.mark.slow
async def test_the_leader_is_asked_wherever_one_asks(tmp_path):
    async with Controllers(tmp_path) as controllers:
        await controllers.leader()
        client = controllers.remote()
        await client.ready()
        await client.do(AddGroup(number=0, config=GroupConfig(replicas=2)))
        assert not (await client.do(AskService(group=0))).served
        for id_ in (1, 2):
            await client.do(RegisterReplica(group=0, replica=replica(id_)))
        told = {}

        def speaks(id_):
            def now():
                group = told.get(id_)
                epoch = 0 if group is None else group.master_epoch
                return [said(id_, master=group is not None and group.master == id_, master_epoch=epoch)]

            return Heartbeats((0,), client.addresses, now, lambda group: told.update({id_: group}), interval_s=0.05)

        beats = [speaks(id_) for id_ in (1, 2)]
        try:
            await until(lambda: 1 in told and told[1].master is not None)
            for node in controllers.nodes.values():
                async with asyncio.timeout(60):
                    while not (await node.do(AskService(group=0))).served:
                        await asyncio.sleep(0.01)
            found = await client.do(AskService(group=0))
            assert found.served
            assert 0 <= found.sure_ms < 10_000
            assert found.room == told[1].sync_set
        finally:
            for one in beats:
                await one.close()
