"""A replica is elected whose newest frame, not known to be confirmed there, is damaged on its disk."""

import logging
import shutil
from types import SimpleNamespace

import pytest

from controller.api.commands import RetireReplica
from store.format.frame import LogOffset
from store.integrity.ledger import Damage
from store.local import replication
from store.node import elected
from store.node.elected import sound_to_lead
from store.node.master_role import MasterRole
from store.node.repair.serving import RangeServer
from tests.support.process.waiting import until
from tests.support.store.flips import flip
from tests.support.store.node_kit import GROUP, PATIENCE_S, StoreGroup
from tests.support.store.store_kit import append, bodies, frame

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = (frame((16, b), producer_id=7, sequence=n + 1) for n, b in enumerate([b"1st", b"2nd", b"3rd"]))
WAITS = "this replica repairs its log before it becomes master"


class Damaged(StoreGroup):
    """A group in which the newest frame of `heir`, alone in sync and alive, is damaged; `others` are dead."""

    async def begin(self, *more):
        """Stores two frames, flips a bit of the second one on the heir, and of `more`; the others are killed."""
        await self.in_sync()
        client = self.store()
        await append(client, FIRST)
        await self.settled()
        master = await self.master()
        heir, third = (name for name in self.names if name != master)
        self.nodes[heir].disk.store.replication.confirm = lambda *_: None  # it does not hear of it in time
        await append(client, SECOND)
        ids = {name: self.id(name) for name in self.names}
        await self.kill(third)
        self.spoil(heir)
        await self.kill(master)
        if more:
            self.spoil(master)
            self.spoil(third)
        await until(lambda: self.group.master == ids[heir], PATIENCE_S)
        return client, heir, master, third

    def spoil(self, name):
        newest = sorted((self.directory / name / "log").iterdir())[-1]
        flip(newest, newest.stat().st_size - 3, bit=2)

    async def same(self, client, *expected):
        """Checks that every replica serves these messages when it is master."""
        await self.in_sync()
        for name in self.names:
            await self.hand_over(name)
            assert await bodies(client, 16) == list(expected), name


async def test_damage_that_a_new_master_finds_in_its_unconfirmed_end_is_repaired_and_not_passed_over(
    tmp_path, controllers
):
    async with Damaged(tmp_path, controllers) as group:
        client, _, master, third = await group.begin()
        await group.start(third)
        await append(client, SECOND)  # sent again, as by a proxy
        await append(client, THIRD)
        await group.start(master)
        await group.same(client, b"1st", b"2nd", b"3rd")


async def test_an_elected_replica_says_once_for_whom_it_waits_to_repair_what(caplog):
    replica = Elected((110, 120), (150, 160))
    turns = 0

    def look():
        nonlocal turns
        turns += 1
        replica.silent = frozenset({2, 3} if turns > 5 else {2})
        replica.lost = [110, 150] if turns == 10 else []

    replica.repairing.look = look
    assert await replica.leads()
    first, second = [one.getMessage() for one in caplog.records]
    assert "it waits for replica 2 to repair the log from 110 to 120 and 1 more ranges" in first
    assert "headgate cluster replicas retire 3 REPLICA" in first
    assert "it waits for replica 2 and replica 3 to repair" in second


async def test_a_new_master_does_not_lead_before_a_replica_that_has_its_end_is_back(tmp_path, controllers, caplog):
    caplog.set_level(logging.ERROR)
    async with Damaged(tmp_path, controllers) as group:
        client, heir, master, third = await group.begin()
        await until(lambda: WAITS in caplog.text, PATIENCE_S)
        node = group.nodes[heir]
        assert node.repairer.needs_repair
        assert not isinstance(node.role, MasterRole)
        await group.start(master, third)
        await append(client, SECOND)
        await append(client, THIRD)
        await group.same(client, b"1st", b"2nd", b"3rd")


async def test_a_new_master_leads_without_what_no_replica_has_and_says_what_is_lost(
    tmp_path, controllers, caplog, monkeypatch
):
    caplog.set_level(logging.ERROR)
    asked = []
    send = RangeServer.send

    async def counted(self, request, context):
        asked.append(request)
        await send(self, request, context)

    monkeypatch.setattr(RangeServer, "send", counted)
    async with Damaged(tmp_path, controllers) as group:
        client, heir, master, third = await group.begin("others")
        await until(lambda: WAITS in caplog.text, PATIENCE_S)
        damage = group.nodes[heir].repairer.damages[0]
        await group.start(master, third)
        assert await group.master() == heir
        assert len(asked) >= 2
        assert f"damaged from {damage.start} to {damage.end}, and no other replica has a sound copy" in caplog.text
        assert group.nodes[heir].repairer.lost_bytes == damage.end - damage.start
        await append(client, frame((17, b"later")))
        assert await bodies(client, 17) == [b"later"]


async def test_a_new_master_leads_when_the_replicas_that_may_have_its_end_are_retired(tmp_path, controllers, caplog):
    caplog.set_level(logging.ERROR)
    async with Damaged(tmp_path, controllers) as group:
        _, heir, _, _ = await group.begin()
        await until(lambda: WAITS in caplog.text, PATIENCE_S)
        for replica in group.group.replicas:
            if replica.id != group.id(heir):
                await group.client.do(RetireReplica(group=GROUP, replica=replica.id, forced=True))
        assert await group.master() == heir
        assert "no other replica has a sound copy: its records are lost" in caplog.text


async def test_the_only_replica_of_a_group_leads_and_says_what_is_lost(tmp_path, controllers, caplog, monkeypatch):
    caplog.set_level(logging.ERROR)
    monkeypatch.setattr(replication, "VERIFIED_BYTES", 200)
    group = StoreGroup(tmp_path, controllers, count=1, segment_size_bytes=300)
    async with group:
        client = group.store()
        for n in range(6):
            await append(client, frame((16, b"%d" % n)))
        await group.settled()
        await group.stop("n1")
        shutil.rmtree(tmp_path / "n1" / "views")
        flip(sorted((tmp_path / "n1" / "log").iterdir())[0], frame((16, b"0")).size_bytes - 1)
        await group.start("n1")
        await append(client, frame((17, b"later")))
        assert await bodies(client, 17) == [b"later"]
        assert await bodies(client, 16) == [b"%d" % n for n in range(1, 6)]
        assert "no other replica has a sound copy: its records are lost" in caplog.text


# ---- one elected replica, by itself


class Elected:
    """A replica that is elected, with damage behind its views, as `sound_to_lead` sees it."""

    replica = 1

    def __init__(self, *damages, unclean_epoch=0):
        self.now = 0
        self.store = SimpleNamespace(
            replication=SimpleNamespace(followed=100, mendable_end=200, verify_unfollowed=self._verify),
            damages=[Damage("", LogOffset(start), LogOffset(end), "", "election") for start, end in damages],
        )
        self.lost = []
        self.disk = SimpleNamespace(
            store=self.store, lost=lambda at: at in self.lost, passed=(), epochs=SimpleNamespace(newest=3)
        )
        self.group = SimpleNamespace(number=GROUP, master=1, master_epoch=5, unclean_epoch=unclean_epoch)
        self.silent = frozenset({2})
        self.repairing = SimpleNamespace(look=lambda: None, awaited=lambda at: self.silent)
        self.on_time = lambda: None

    async def _verify(self):
        self.now += 1

    def known(self):
        return self.group

    def now_ms(self):
        self.now += 1_000
        self.on_time()
        return self.now

    async def leads(self, *, failed=False):
        return await sound_to_lead(self, lambda: failed)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(elected, "TICK_S", 0)


async def test_damage_that_the_views_have_followed_holds_up_no_new_master():
    replica = Elected((20, 90), (200, 230))
    assert await replica.leads()
    assert not replica.disk.passed


async def test_a_new_master_passes_over_what_is_lost_and_nothing_else():
    replica = Elected((20, 90), (110, 120))
    replica.lost = [110]
    assert await replica.leads()
    assert list(replica.disk.passed) == [(110, 120)]


async def test_an_elected_replica_that_waits_for_a_repair_gives_way_to_the_next_master():
    replica = Elected((90, 120))
    replica.group.master = 2
    assert not await replica.leads()
    replica.group.master = 1
    assert not await replica.leads(failed=True)


async def test_an_unclean_election_goes_on_without_what_no_live_replica_repairs_in_time(caplog):
    replica = Elected((110, 120), (150, 160), unclean_epoch=4)
    replica.lost = [150]
    assert await replica.leads()
    assert replica.now > elected.UNCLEAN_REPAIR_MS
    assert list(replica.disk.passed) == [(110, 120), (150, 160)]
    assert "damaged from 110 to 120, and no live replica repairs it" in caplog.text
