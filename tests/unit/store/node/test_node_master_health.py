"""A master with a full disk hands over to a replica that has room, once; one that cannot confirm says so."""

from types import SimpleNamespace

import pytest

from controller.api.client import GroupConfig
from controller.api.requests import AskService
from store.base.errors import NotWritable, StoreFull
from store.engine import engine
from store.node import master_health
from tests.support.process.waiting import until
from tests.support.store.node_kit import GROUP, PATIENCE_S, Load, StoreGroup
from tests.support.store.store_kit import FaultyFiles, append, bodies, frame

pytestmark = pytest.mark.anyio


class Disks(StoreGroup):
    """A group whose disks can be filled."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.files = {name: FaultyFiles() for name in self.names}
        self.own = {name: {"files": self.files[name], "disk_reserve_bytes": 1 << 20} for name in self.names}

    def fill(self, *names):
        for name in names:
            self.files[name].free = 0

    def free(self, *names):
        for name in names:
            self.files[name].free = None


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(master_health, "FULL_MS", 100)
    monkeypatch.setattr(master_health, "ROUND_MS", 300)
    monkeypatch.setattr(engine, "LOOK_S", 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("acknowledge", ["all_in_sync", "quorum"])
async def test_a_master_without_room_hands_over_to_one_that_has_some(tmp_path, controllers, acknowledge):
    config = GroupConfig(replicas=3, min_in_sync=2, acknowledge=acknowledge)
    async with Disks(tmp_path, controllers, config=config) as group:
        await group.in_sync()
        before = Load(group.store(), pause_s=0.01)
        await before.until(20)
        full, epoch = await group.master(), group.group.master_epoch
        group.fill(full)
        heir = await group.master(after=epoch)
        assert heir != full
        after = Load(group.store(), producer=8, pause_s=0.01)
        await after.until(20)
        assert StoreFull in {type(error) for error in before.errors}
        assert not after.errors
        assert not group.nodes[full].failed.done()
        group.free(full)
        await group.in_sync()
        await after.until(5)
        assert await group.master() == heir  # it is not taken back
        before.stopping = True
        await before.task
        acknowledged = [before.body(one) for one in before.acknowledged]
        acknowledged += [after.body(one) for one in await after.stop()]
        await group.settled()
        assert set(acknowledged) <= set(await bodies(group.nodes[full].disk.store, 16))


@pytest.mark.slow
async def test_it_goes_to_the_one_that_has_room(tmp_path, controllers):
    async with Disks(tmp_path, controllers) as group:
        await group.in_sync()
        await append(group.store(), frame((16, b"a")))
        full, epoch = await group.master(), group.group.master_epoch
        first, second = (name for name in group.names if name != full)
        group.fill(first)
        registry = controllers.nodes[1].registry
        await until(lambda: registry.last(GROUP, group.id(first)).full, PATIENCE_S)
        group.fill(full)
        assert await group.master(after=epoch) == second


@pytest.mark.slow
async def test_where_nobody_has_room_nobody_is_asked_to_and_it_is_asked_seldom(tmp_path, controllers, caplog):
    async with Disks(tmp_path, controllers, count=2) as group:
        await group.in_sync()
        store = group.store()
        await append(store, frame((16, b"a")))
        name, epoch = await group.master(), group.group.master_epoch
        master = group.role(name)
        registry = controllers.nodes[1].registry
        other = next(one for one in group.names if one != name)
        group.fill(other)
        await until(lambda: registry.last(GROUP, group.id(other)).full, PATIENCE_S)
        group.fill(name)
        await until(lambda: "its disk is full: no other replica is in sync with room" in caplog.text, PATIENCE_S)
        assert master.health.stalled
        await until(lambda: registry.last(GROUP, group.id(name)).stalled, PATIENCE_S)  # with the next heartbeat
        again_ms = master.context.relief_ms
        assert again_ms - master.context.now_ms() > master_health.RELIEF_AGAIN_MS / 2
        with pytest.raises(StoreFull):
            await append(store, frame((16, b"b")))
        group.free(*group.names)
        await until(lambda: not master.health.stalled, PATIENCE_S)
        await append(store, frame((16, b"b")))
        assert group.group.master_epoch == epoch


@pytest.mark.slow
async def test_a_master_whose_replicas_do_not_answer_says_so(tmp_path, controllers):
    async with StoreGroup(tmp_path, controllers, count=2) as group:
        await group.in_sync()
        name = await group.master()
        other = next(one for one in group.names if one != name)
        registry, id_ = controllers.nodes[1].registry, group.id(name)
        await until(lambda: registry.last(GROUP, id_).master and not registry.last(GROUP, id_).stalled, PATIENCE_S)
        assert (await group.client.do(AskService(group=GROUP))).served
        local = group.nodes[name].disk.store
        await append(group.store(), frame((20, b"a"), (20, b"b")))
        assert [lease.offset for lease in await local.leases.take(20, 1, max_count=1)] == [0]
        await group.kill(other)
        await until(lambda: registry.last(GROUP, id_).stalled, PATIENCE_S)
        assert not (await group.client.do(AskService(group=GROUP))).served
        await until(lambda: group.role(name).health.cut_off, PATIENCE_S)
        with pytest.raises(NotWritable, match="no messages are leased"):  # another master may lease them by now
            await local.leases.take(20, 1, max_count=1)
        await group.start(other)
        await group.in_sync()
        await until(lambda: not group.role(name).health.cut_off, PATIENCE_S)
        assert [lease.offset for lease in await local.leases.take(20, 1, max_count=1)] == [1]
        await until(lambda: not registry.last(GROUP, id_).stalled, PATIENCE_S)


@pytest.mark.parametrize(("fit", "heir"), [((1, 3), 3), ((1, 2, 3), 2), ((1,), 2)])
async def test_damage_is_left_to_one_that_nothing_else_is_wrong_with(monkeypatch, fit, heir):
    """A damaged master stayed, as it asked for one again and again whose certificate had expired."""
    monkeypatch.setattr(master_health, "DAMAGED_MS", 0)
    asked = []

    async def answer(_request):
        return SimpleNamespace(room=fit)

    async def switch_over(target):
        asked.append(target)
        return 2

    ends = {2: 500, 3: 500}
    core = SimpleNamespace(
        sync_set=(1, 2, 3),
        round_agreed=0,
        end=500,
        flushed=500,
        refusal=None,
        ask_round=lambda: 0,
        is_damaged=lambda one: one == 1,
        positions=lambda: ends,
    )
    context = SimpleNamespace(
        group=0,
        relief_ms=0,
        repairing=SimpleNamespace(needs_repair=True),
        controller=SimpleNamespace(do=answer),
        now_ms=lambda: 10_000,
        send_heartbeat=lambda: None,
    )
    health = master_health.MasterHealth(context, core, switch_over)
    health.look(None, replicas=(2, 3))
    await health.relieving
    assert asked == [heir]
