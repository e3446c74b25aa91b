"""A group whose logs have all lost their ends: nobody is elected until an operator accepts the loss."""

import asyncio
import contextlib
import logging

import msgspec
import pytest

from controller.api.client import NotElectable, StaleEpoch
from controller.api.requests import Elect
from store.disk.files import OsFiles
from store.integrity.floor import read_floor
from store.local.local import LocalStore
from store.node.master_role import MasterRole
from store.node.node import StoreNode
from store.node.replica.disk import Disk
from store.replication.unclean_file import load_unclean, save_unclean
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, PATIENCE_S, StoreGroup
from tests.support.store.replica_kit import log_bytes
from tests.support.store.store_kit import append, bodies, frame

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

COUNT = 20
BODIES = [b"%03d" % n + bytes(100) for n in range(COUNT)]
LOST = (700, 1_100, 900)  # bytes that the last files lose, by replica


async def fill(group):
    """Writes messages that every replica has, in a last file that is long; returns the log's end."""
    await group.in_sync()
    store = group.store()
    for body in BODIES:
        await append(store, frame((16, body)))
    await store.keys.put("k", b"v")
    await group.settled()
    return group.nodes[await group.master()].disk.store.replication.end


def shorten(group, name, size):
    """Cuts this many bytes off the end of a stopped replica's log."""
    path = max((group.directory / name / "log").iterdir())
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - size)


async def lose_the_ends(group, *, known=True, floors_too=False):
    """Stops all replicas, cuts off the ends of their logs, and starts them again."""
    epoch = group.group.master_epoch
    await asyncio.gather(*(group.kill(name) for name in list(group.nodes)))
    for name, size in zip(group.names, LOST, strict=True):
        shorten(group, name, size)
        if floors_too:
            (group.directory / name / "floor").unlink()
    await group.start()
    if known:
        await heard_short(group)
    return epoch


async def heard_short(group):
    registry = group.controllers.nodes[1].registry
    await until(lambda: all(registry.last(GROUP, group.id(name)).cut_short for name in group.nodes), PATIENCE_S)


async def elect_unclean(group, replica=None):
    """Elects a replica uncleanly, as soon as the stopped replicas are not taken for alive and sound any more."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            epoch = group.group.master_epoch
            with contextlib.suppress(NotElectable, StaleEpoch):
                return await group.client.do(Elect(group=GROUP, candidate=replica, master_epoch=epoch, unclean=True))
            await asyncio.sleep(0.05)


def floors(group):
    return {name: read_floor(OsFiles(), group.directory / name / "floor") for name in group.names}


async def whole(group):
    """Waits until all replicas are in sync and undamaged, and checks that their logs are the same."""
    await group.in_sync()
    await until(lambda: not any(node.repairer.damages for node in group.nodes.values()), PATIENCE_S)
    await until(lambda: not any(node.repairer.needs_repair for node in group.nodes.values()), PATIENCE_S)
    await group.settled()
    assert len({log_bytes(group.directory / name) for name in group.names}) == 1


async def check(group, epoch):
    """Checks that all replicas read what is left and what is written now, and that a clean election goes on with it."""
    store = group.store()
    await append(store, frame((16, b"more")))
    left = await bodies(store, 16)
    assert left == [*BODIES[: len(left) - 1], b"more"]
    assert len(left) > 3
    await whole(group)
    for node in group.nodes.values():
        assert await bodies(node.disk.store, 16) == left
    heir = next(name for name in group.names if name != group.name_of(group.group.master))
    await group.hand_over(heir)
    assert await bodies(group.store(), 16) == left
    assert group.group.unclean_epoch > epoch
    assert group.group.unclean_epoch < group.group.master_epoch


async def test_a_group_whose_logs_have_all_lost_their_ends_goes_on_when_that_is_accepted(tmp_path, controllers, caplog):
    async with StoreGroup(tmp_path, controllers) as group:
        end = await fill(group)
        epoch = await lose_the_ends(group)
        with pytest.raises(NotElectable):
            await group.client.do(Elect(group=GROUP, candidate=None))
        assert set(floors(group).values()) == {end}
        found = await elect_unclean(group)
        assert group.name_of(found.master) == "n1"  # which has lost least
        assert found.unclean_epoch == found.master_epoch
        assert await group.master(after=epoch) == "n1"
        await check(group, epoch)
        given_up = [one for one in caplog.records if "the log is given up from" in one.getMessage()]
        assert {one.levelname for one in given_up} == {"CRITICAL"}
        assert len(given_up) == 3
        assert all(f"to {end}, " in one.getMessage() for one in given_up)


async def test_ends_that_are_lost_with_the_floors_are_given_up_by_no_clean_election(tmp_path, controllers):
    """As after a power failure: the floor is not synced, the views have followed what the log has lost."""
    async with StoreGroup(tmp_path, controllers) as group:
        end = await fill(group)
        for node in group.nodes.values():
            await node.disk.store.core.until_dispatched(end)
        epoch = await lose_the_ends(group, floors_too=True)
        with pytest.raises(NotElectable):
            await group.client.do(Elect(group=GROUP, candidate=None))
        assert {node.disk.store.replication.lost_end for node in group.nodes.values()} == {end}
        assert not any(isinstance(node.role, MasterRole) for node in group.nodes.values())
        await elect_unclean(group)
        await group.master(after=epoch)
        await check(group, epoch)


async def test_a_replica_with_a_longer_log_goes_along_when_a_shorter_one_is_elected(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers) as group:
        await fill(group)
        epoch = await lose_the_ends(group)
        await elect_unclean(group, group.id("n2"))
        assert await group.master(after=epoch) == "n2"
        await check(group, epoch)


async def test_a_replica_that_cannot_make_its_views_anew_gives_up_its_end_with_a_snapshot(
    tmp_path, controllers, monkeypatch, caplog
):
    monkeypatch.setattr(LocalStore, "views_rebuildable", property(lambda self: False))  # which replicas go by
    caplog.set_level(logging.INFO, "store.engine.snapshot")
    async with StoreGroup(tmp_path, controllers) as group:
        await fill(group)
        epoch = await lose_the_ends(group)
        await elect_unclean(group)
        await group.master(after=epoch)
        await check(group, epoch)
        assert caplog.text.count("a snapshot of the views was installed") == 2


@pytest.mark.parametrize("step", ["open_replica", "follow_unclean"])
async def test_a_replica_that_is_killed_while_it_gives_up_its_end_goes_on_by_itself(
    tmp_path, controllers, monkeypatch, step
):
    async with StoreGroup(tmp_path, controllers) as group:
        await fill(group)
        epoch = await lose_the_ends(group)
        real, killed = getattr(Disk, step), asyncio.Event()

        async def dies(self, *args, **options):
            if step == "follow_unclean" or "give_up_from" in options:
                killed.set()
                await asyncio.Event().wait()
            return await real(self, *args, **options)

        monkeypatch.setattr(Disk, step, dies)
        await elect_unclean(group)
        await killed.wait()
        monkeypatch.undo()
        await group.kill("n1")
        await group.start("n1")
        assert await group.master(after=epoch) == "n1"
        await check(group, epoch)


async def test_no_clean_election_gives_up_a_lost_end(tmp_path, controllers):
    """Not even of a log that has followed an unclean election before."""
    async with StoreGroup(tmp_path, controllers) as group:
        await fill(group)
        epoch = await lose_the_ends(group)
        await elect_unclean(group)
        await group.master(after=epoch)
        store = group.store()
        for body in BODIES:
            await append(store, frame((16, body)))
        await whole(group)
        unclean = group.group.unclean_epoch
        assert {load_unclean(OsFiles(), tmp_path / name) for name in group.names} == {unclean}
        floor = set(floors(group).values())
        again = await lose_the_ends(group)
        for replica in (None, *(group.id(name) for name in group.names)):
            with pytest.raises(NotElectable):
                await group.client.do(Elect(group=GROUP, candidate=replica))
        assert not any(isinstance(node.role, MasterRole) for node in group.nodes.values())
        assert set(floors(group).values()) == floor
        await elect_unclean(group)
        await group.master(after=again)
        await append(group.store(), frame((16, b"more")))
        await whole(group)


async def test_a_replica_that_has_lost_its_end_does_not_lead_though_the_controllers_do_not_know(
    tmp_path, controllers, monkeypatch, caplog
):
    said, silent = StoreNode._heartbeats, [True]

    def nothing_said(self):
        return [msgspec.structs.replace(one, **dict.fromkeys(["cut_short", "damaged"], False)) for one in said(self)]

    def told(self):
        return nothing_said(self) if silent else said(self)

    async with StoreGroup(tmp_path, controllers) as group:
        end = await fill(group)
        monkeypatch.setattr(StoreNode, "_heartbeats", told)
        epoch = await lose_the_ends(group, known=False)
        await until(lambda: "cannot become master: its log has lost its end" in caplog.text, PATIENCE_S)
        await until(lambda: group.group.master_epoch > epoch, PATIENCE_S)
        assert set(floors(group).values()) == {end}
        silent.clear()
        await heard_short(group)
        await elect_unclean(group)
        await group.master(after=epoch)
        await check(group, epoch)


async def test_a_replica_that_was_away_gives_up_its_lost_end_when_it_comes_back_epochs_later(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers) as group:
        await fill(group)
        epoch = await lose_the_ends(group)
        await group.kill("n3")
        await elect_unclean(group)
        await group.master(after=epoch)
        await group.in_sync("n1", "n2")
        later = await group.hand_over("n2")
        assert later > group.group.unclean_epoch
        await group.start("n3")
        await check(group, epoch)


def test_a_damaged_note_of_unclean_elections_gives_up_nothing(tmp_path, caplog):
    save_unclean(OsFiles(), tmp_path, 7)
    assert load_unclean(OsFiles(), tmp_path) == 7
    path = tmp_path / "unclean"
    path.write_bytes(path.read_bytes().replace(b"7", b"6"))
    assert load_unclean(OsFiles(), tmp_path) > 1 << 60
    assert "start the node on an empty directory" in caplog.text
