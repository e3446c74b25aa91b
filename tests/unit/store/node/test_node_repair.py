"""Damaged logs in a store group: they are repaired from another replica while everything goes on."""

import contextlib
import logging
import shutil

import pytest

from controller.api.client import GroupConfig
from gateway.config.config import load
from gateway.process.nodes import store_settings
from store.base.errors import AppendOutcomeUnknown, NotWritable, StoreUnreachable
from store.log.segment import BadRange
from store.node import master_health
from store.node.master_role import MasterRole
from store.node.repair.agreement import Agreement
from store.node.repair.serving import RangeServer
from store.node.run import _Process
from tests.support.process.waiting import until
from tests.support.store.flips import flip
from tests.support.store.node_kit import GROUP, PATIENCE_S, StoreGroup
from tests.support.store.replica_kit import log_bytes
from tests.support.store.store_kit import append, bodies, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COUNT = 40
BODIES = [b"%03d" % n + bytes(100) for n in range(COUNT)]


def group_of(tmp_path, controllers, **options):
    return StoreGroup(tmp_path, controllers, segment_size_bytes=2_000, **options)


async def fill(group):
    """Writes messages that every replica has, in several segments."""
    await group.in_sync()
    store = group.store()
    for body in BODIES:
        await append(store, frame((16, body)))
    await group.settled()


def flip_segment(group, name, segment=1, at=300):
    """Flips a bit in a closed segment of a replica; returns the log offset."""
    path = sorted((group.directory / name / "log").iterdir())[segment]
    flip(path, at, bit=3)
    return int(path.stem) + at


def scrub(group, name):
    """Reads a replica's log through, and notes what is damaged."""
    log = group.nodes[name].disk.store.core.engine.log
    for found in log.scan(log.first, log.end):
        if isinstance(found, BadRange):
            log.damaged(found, "scrub")


async def repaired(group, name, count=1):
    def whole():
        store, withdrawn = group.nodes[name].disk.store, group.nodes[name].repairer.needs_repair
        return store is not None and store.damages_repaired >= count and not store.is_damaged and not withdrawn

    await until(whole, PATIENCE_S)


async def same(group):
    """Checks that all logs are the same."""
    await group.settled()
    assert len({log_bytes(group.directory / name) for name in group.names}) == 1


async def restarted_master(group):
    """Restarts the master, so that none of its log is in memory."""
    heir = next(name for name in group.names if name != group.name_of(group.group.master))
    await group.stop(heir)
    await group.start(heir)
    master = group.role(await group.master())
    await until(lambda: master.core.peers[group.id(heir)].ready, PATIENCE_S)
    await group.in_sync()
    await group.hand_over(heir)
    await group.in_sync()
    return heir


async def test_a_replica_is_repaired_and_is_out_of_the_set_meanwhile(tmp_path, controllers, monkeypatch):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        master = await group.master()
        hurt, other = (name for name in group.names if name != master)
        sending = RangeServer.send

        async def refused(*_):
            raise StoreUnreachable("not now")

        monkeypatch.setattr(RangeServer, "send", refused)
        flip_segment(group, hurt)
        scrub(group, hurt)
        await group.in_sync(master, other)
        registry = controllers.nodes[1].registry
        assert registry.last(GROUP, group.id(hurt)).damaged
        process = _Process(store_settings(load(None, {})))
        process.node = group.nodes[hurt]
        assert not process.ready().ready
        assert any(one.startswith("damaged: 1 ranges") for one in process.ready().reasons)
        [damage] = process.status().damages
        assert (damage.found_by, damage.lost) == ("scrub", False)
        assert group.role(hurt).streaming
        monkeypatch.setattr(RangeServer, "send", sending)
        await repaired(group, hurt)
        await group.in_sync()
        await until(lambda: not registry.last(GROUP, group.id(hurt)).damaged, PATIENCE_S)
        await until(lambda: process.ready().ready, PATIENCE_S)  # the node hears of the set after this test does
        assert process.status().damages == ()
        await same(group)


async def test_a_master_is_repaired_from_a_replica_and_stays_master(tmp_path, controllers):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        name = await restarted_master(group)
        epoch = group.role(name).core.epoch
        flip_segment(group, name)
        scrub(group, name)
        await repaired(group, name)
        assert group.role(name).core.epoch == epoch
        assert await bodies(group.store(), 16) == BODIES
        await same(group)


async def test_an_emptied_replica_is_filled_around_the_damage_of_its_master(tmp_path, controllers, caplog):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        master = await restarted_master(group)
        empty, _ = (name for name in group.names if name != master)
        await group.stop(empty)
        await group.in_sync(*(name for name in group.names if name != empty))
        flip_segment(group, master)
        shutil.rmtree(tmp_path / empty)
        with caplog.at_level(logging.INFO):
            await group.start(empty)
            await until(lambda: len(group.group.sync_set) == 3, PATIENCE_S)
        assert caplog.text.count("the stream to the master has ended") < 3
        await same(group)


async def test_an_emptied_replica_waits_for_its_masters_repair_without_dialling_again(
    tmp_path, controllers, monkeypatch
):
    monkeypatch.setattr(master_health, "DAMAGED_MS", 60_000)
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        master = await restarted_master(group)
        empty, _ = (name for name in group.names if name != master)
        await group.stop(empty)
        sending = RangeServer.send
        attempts = []
        attend = MasterRole.attend

        async def refused(*_):
            raise StoreUnreachable("not now")

        def counted(self, context, hello):
            attempts.append(hello)
            return attend(self, context, hello)

        monkeypatch.setattr(RangeServer, "send", refused)
        monkeypatch.setattr(MasterRole, "attend", counted)
        at = flip_segment(group, master)
        shutil.rmtree(tmp_path / empty)
        await group.start(empty)
        role = group.nodes[master].role
        await until(lambda: group.nodes[master].repairer.damages, PATIENCE_S)

        async def answered():
            round_ = role.core.ask_round()
            role._pump_soon()

            def has_answered():
                peer = role.core.peers.get(group.id(empty))  # it has another id once it is registered anew
                return peer is not None and peer.round >= round_

            await until(has_answered, PATIENCE_S)

        await answered()  # by then the replica has its last stream
        heard = len(attempts)
        await answered()  # and that lives
        assert len(attempts) == heard <= 3
        assert role.core.positions()[group.id(empty)] <= at
        monkeypatch.setattr(RangeServer, "send", sending)
        await until(lambda: len(group.group.sync_set) == 3, PATIENCE_S)
        await same(group)


async def test_a_master_that_is_not_repaired_hands_over(tmp_path, controllers, monkeypatch, caplog):
    async def refused(*_):
        raise StoreUnreachable("not now")

    monkeypatch.setattr(master_health, "DAMAGED_MS", 300)
    monkeypatch.setattr(RangeServer, "send", refused)
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        name = await restarted_master(group)
        epoch = group.role(name).core.epoch
        flip_segment(group, name)
        scrub(group, name)
        assert await group.master(after=epoch) != name
        assert "as its log is not repaired" in caplog.text
        assert await bodies(group.store(), 16) == BODIES
        await append(group.store(), frame((16, b"more")))


async def test_two_replicas_with_different_damages_repair_each_other(tmp_path, controllers):
    config = GroupConfig(replicas=2, min_in_sync=2)
    group = group_of(tmp_path, controllers, count=2, config=config)
    async with group:
        await fill(group)
        master = await restarted_master(group)
        replica = next(name for name in group.names if name != master)
        await until(
            lambda: group.nodes[replica].disk.store is not None, PATIENCE_S
        )  # as a replica, no longer as master
        for name, places in ((master, [(1, 300), (2, 300)]), (replica, [(1, 1500), (3, 300)])):
            for segment, at in places:
                flip_segment(group, name, segment, at)
        scrub(group, master)
        scrub(group, replica)
        await repaired(group, master, 2)
        await repaired(group, replica, 2)
        await group.in_sync()
        await same(group)
        assert await bodies(group.store(), 16) == BODIES


async def test_what_every_replica_has_damaged_is_said_to_be_lost_and_the_group_goes_on(tmp_path, controllers, caplog):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        for name in group.names:
            flip_segment(group, name)
        for name in group.names:
            scrub(group, name)
        await until(lambda: all(node.repairer.lost_bytes for node in group.nodes.values()), PATIENCE_S)
        assert [one.levelname for one in caplog.records if "its records are lost" in one.getMessage()] == [
            "CRITICAL"
        ] * 3
        await group.in_sync()
        await append(group.store(), frame((16, b"more")))
        for node in group.nodes.values():
            assert not node.repairer.needs_repair
            process = _Process(store_settings(load(None, {})))
            process.node = node  # which serves all the rest: whoever waits for it to be ready would wait for ever
            await until(lambda process=process: process.ready().ready, PATIENCE_S)
            assert any("of them lost, as no replica has them" in one for one in process.ready().warnings)
            assert "of them lost" in node.repairer.describe()
            lost = tuple((await process.full_status()).lost)
            assert lost
            assert {one.queue for one in lost} == {16}
            said = f"no topic, queue 16, offsets {lost[0].first} to {lost[0].next - 1}"
            await until(lambda process=process, said=said: any(said in one for one in process.ready().warnings))


async def append_until_known(group):
    """Appends once more where a frame was stored before the master knew of the damage."""
    while True:
        with contextlib.suppress(AppendOutcomeUnknown):
            return await append(group.store(budget_s=0.5), frame((16, b"no")))


async def test_a_group_of_two_refuses_writes_while_one_is_damaged(tmp_path, controllers, monkeypatch):
    sending = RangeServer.send

    async def refused(*_):
        raise StoreUnreachable("not now")

    group = group_of(tmp_path, controllers, count=2)
    async with group:
        await fill(group)
        master = await group.master()
        hurt = next(name for name in group.names if name != master)
        monkeypatch.setattr(RangeServer, "send", refused)
        flip_segment(group, hurt)
        scrub(group, hurt)
        await until(lambda: group.role(master).core.refusal is not None, PATIENCE_S)
        with pytest.raises(NotWritable, match="damaged"):
            await append_until_known(group)
        assert set(group.group.sync_set) == {group.id(master), group.id(hurt)}
        monkeypatch.setattr(RangeServer, "send", sending)
        await repaired(group, hurt)
        await append(group.store(), frame((16, b"yes")))


async def test_a_replica_that_has_lost_the_end_of_its_log_is_filled_again_and_joins(tmp_path, controllers):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        master = await group.master()
        hurt = next(name for name in group.names if name != master)
        await group.kill(hurt)
        paths = sorted((tmp_path / hurt / "log").iterdir())
        for path in paths[-2:]:
            path.unlink()
        with paths[-3].open("r+b") as file:
            file.truncate(700)
        await group.start(hurt)
        await repaired(group, hurt, 0)
        await until(lambda: not group.nodes[hurt].repairer.cut_short, PATIENCE_S)
        await group.in_sync()
        await same(group)
        await until(lambda: not group.role(master).core.is_damaged(group.id(hurt)), PATIENCE_S)
        await group.hand_over(hurt)
        assert await bodies(group.store(), 16) == BODIES


async def test_a_replica_whose_whole_log_is_gone_is_filled_again_and_is_not_elected_before(tmp_path, controllers):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)
        master = await group.master()
        hurt = next(name for name in group.names if name != master)
        await group.kill(hurt)
        shutil.rmtree(tmp_path / hurt / "log")
        await group.start(hurt)
        await repaired(group, hurt, 0)
        await group.in_sync()
        await same(group)
        await until(lambda: not group.role(master).core.is_damaged(group.id(hurt)), PATIENCE_S)
        await group.hand_over(hurt)
        assert await bodies(group.store(), 16) == BODIES


async def test_replicas_compare_their_seals_over_the_streams_that_they_have(tmp_path, controllers):
    group = group_of(tmp_path, controllers)
    async with group:
        await fill(group)

        def sealed():
            stores = [group.nodes[name].disk.store for name in group.names]
            return all(
                store is not None and store.seals() and store.seals()[-1].end == store.core.engine.log.sealed
                for store in stores
            )

        await until(sealed, PATIENCE_S)
        for name in group.names:
            node = group.nodes[name]
            agreement = Agreement(node.context)
            await agreement.look()
            assert len(agreement._agreed) == len(node.disk.store.seals())
