"""Lease groups over a real store: messages that are leased, settled, given back, kept longer, and given up."""

import asyncio
import random

import pytest

from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.groups.lease_groups import LeaseGroups
from gateway.groups.lease_letters import LeaseLetters
from gateway.groups.settings import GroupsConfig
from gateway.port.groups import (
    HANDLES_COUNT_MAX,
    CreateLeaseGroup,
    DeleteGroup,
    DescribeGroup,
    ExtendReceived,
    JoinGroup,
    LeaseTerms,
    ListGroups,
    PollGroup,
    ReceiveMessages,
    ResetGroup,
    ReturnReceived,
    SettleReceived,
)
from gateway.publishing.moving import Mover
from gateway.publishing.routing.router import Router
from store.api.message import Message, decode, encode
from store.base.errors import StoreFull
from store.format import policy
from store.local.local import LocalStore
from tests.support.gateway.asking import ask
from tests.support.gateway.groups_rig import ANYBODY, FIRST, Connection, GroupsProxy, Topics, publish
from tests.support.process.clock import Clock
from tests.support.store.leasing_kit import put

pytestmark = pytest.mark.anyio

A, B = FIRST, FIRST + 1
DEAD = FIRST + 8  # the queue of the topic that dead letters go to
CONFIG = GroupsConfig()
LIMITED = LeaseTerms(attempts=2, dead_letter="dead/letters")


class LeasesProxy(GroupsProxy):
    """One process with groups of both kinds."""

    def __init__(self, store, topics, clock, *, seed, config=CONFIG):
        super().__init__(store, topics, clock, seed=seed, config=config)
        self.mover = mover = Mover(
            store=store,
            controller=topics,
            router=Router(topics, []),
            appended=lambda _queues: None,
            creates_topics=False,
        )
        self.lease_groups = LeaseGroups(self.groups, letters=LeaseLetters(mover))

    async def ask(self, request, of=ANYBODY, connection=None, token=None):
        parts = {"groups": self.groups, "lease_groups": self.lease_groups, "token": token}
        return await ask(connection or Connection(), request, who=of, **parts)

    async def create(self, group="g", topic="t", start="earliest", **terms):
        given = terms.pop("terms", None) or LeaseTerms(**terms)
        return await self.ask(CreateLeaseGroup(group=group, topic=topic, start=start, terms=given))

    async def receive(self, group="g", **options):
        return await self.ask(ReceiveMessages(group=group, **options))

    async def settle(self, *received, group="g"):
        return await self.ask(SettleReceived(group=group, handles=[one.handle for one in received]))

    async def give_back(self, *received, group="g", delay_s=None):
        handles = [one.handle for one in received]
        return await self.ask(ReturnReceived(group=group, handles=handles, delay_s=delay_s))


class LeasesRig:
    def __init__(self, store, clock):
        self.store, self.clock = store, clock
        self.topics = Topics(t=2)
        self.topics.put("dead", [DEAD])
        self.proxies = []

    def proxy(self, config=CONFIG):
        self.proxies.append(LeasesProxy(self.store, self.topics, self.clock, seed=len(self.proxies) + 1, config=config))
        return self.proxies[-1]

    async def pass_time(self, seconds):
        self.clock.ms += int(seconds * 1_000)
        await self.store.tick()

    async def publish(self, **fields):
        await publish(self.store, fields.pop("bodies"), **fields)

    async def dead_letters(self):
        fetched = await self.store.queues.fetch(DEAD, 0, max_bytes=1 << 20)
        return [
            decode(frame.record(row)) for frame, rows in zip(fetched.frames, fetched.rows, strict=True) for row in rows
        ]


@pytest.fixture
async def rig(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        rig = LeasesRig(store, clock)
        yield rig
        for proxy in rig.proxies:
            await proxy.die()


def bodies(received):
    return sorted(one.message.body for one in received)


def causes(answers):
    return [one.cause if isinstance(one, Refusal) else None for one in answers]


async def test_what_is_leased_is_leased_once_and_settled_at_any_proxy(rig):
    one, other = rig.proxy(), rig.proxy()
    await rig.publish(bodies={A: [b"1", b"2"], B: [b"3"]})
    assert (await one.create()).created
    assert not (await other.create()).created
    got = await one.receive()
    assert bodies(got) == [b"1", b"2", b"3"]
    assert {received.deliveries for received in got} == {1}
    assert all(received.message.id for received in got)
    assert await other.receive() == []
    assert await other.settle(*got) == [None] * 3
    assert await one.settle(*got) == [None] * 3, "a settlement may be repeated"
    await rig.pass_time(3_600)
    assert await one.receive() == []


async def test_a_limit_is_kept_and_shared_by_the_queues(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"a%d" % n for n in range(20)], B: [b"b"]})
    await one.create()
    for limit, leased in ((3, 3), (7, 7), (100, 11), (1, 0)):
        assert len(await one.receive(limit=limit)) == leased


async def test_what_is_not_settled_comes_back_with_its_count(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"1"]})
    await one.create(lease_s=20)
    (first,) = await one.receive()
    await rig.pass_time(19)
    assert await one.receive() == []
    await rig.pass_time(2)
    (again,) = await one.receive()
    assert (again.offset, again.deliveries) == (first.offset, 2)
    assert causes(await one.settle(first)) == [Cause.CONFLICT], "it is leased to somebody else"
    assert await one.settle(again) == [None]


async def test_what_is_given_back_waits_for_its_delay(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"1"]})
    await one.create(retry_s=4, retry_max_s=6)
    for delay_s, waits_s in ((None, 4), (None, 6), (60, 60), (0, 0)):
        (got,) = await one.receive()
        assert await one.give_back(got, delay_s=delay_s) == [None]
        if waits_s:
            await rig.pass_time(waits_s - 1)
            assert await one.receive() == []
            await rig.pass_time(2)
    (got,) = await one.receive()
    assert got.deliveries == 5


async def test_a_lease_is_extended_and_both_handles_stay_good(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"1", b"2"]})
    await one.create(lease_s=10)
    got = await one.receive()
    await rig.pass_time(8)
    longer = await one.ask(ExtendReceived(group="g", handles=[received.handle for received in got], lease_s=100))
    assert all(isinstance(handle, str) for handle in longer)
    await rig.pass_time(90)
    assert await one.receive() == []
    assert await one.settle(got[0]) == [None]
    assert await one.ask(SettleReceived(group="g", handles=longer[1:])) == [None]
    (lost,) = await one.ask(ExtendReceived(group="g", handles=longer[1:], lease_s=100))
    assert (lost.cause, "was settled" in lost.detail) == (Cause.CONFLICT, True)


async def test_a_message_delivered_too_often_becomes_a_dead_letter(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"poison", b"good"]}, address="t/of/it", expires_at_ms=rig.clock.ms + 10_000_000)
    await one.create(terms=LIMITED)
    for _ in range(2):
        for got in await one.receive():
            await (one.settle(got) if got.message.body == b"good" else one.give_back(got))
    assert await one.receive() == []
    (letter,) = await rig.dead_letters()
    assert (letter.address, letter.body, letter.expires_at_ms) == ("dead/letters", b"poison", None)
    assert dict(letter.properties) == {
        "deadletteraddress": "t/of/it",
        "deadletterattempts": "2",
        "deadletterreason": "not acknowledged after 2 deliveries",
        "deadlettergroup": "g",
    }
    await rig.pass_time(3_600)
    assert await one.receive() == []
    assert len(await rig.dead_letters()) == 1


async def test_a_dead_letter_that_is_refused_keeps_its_message(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"poison"]})
    await one.create(attempts=1, dead_letter="missing/there")
    await one.give_back(*await one.receive())
    assert await one.receive() == []
    rig.topics.put("missing", [DEAD])
    await rig.pass_time(31)
    assert await one.receive() == []
    assert [letter.body for letter in await rig.dead_letters()] == [b"poison"]


async def test_a_dead_letter_in_another_store_group_is_stored_once_however_often_its_source_refuses(rig, monkeypatch):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"poison"]})
    await one.create(attempts=1, dead_letter="dead/letters", lease_s=30)
    await one.give_back(*await one.receive())
    one.mover.router.resolve("dead/letters")
    one.mover.router.groups[DEAD] = 1
    settle = rig.store.leases.settle

    async def full(*_, **__):
        raise StoreFull("no room")

    monkeypatch.setattr(rig.store.leases, "settle", full)
    for _ in range(3):
        assert await one.receive() == []
        assert len(await rig.dead_letters()) == 1
        await rig.pass_time(31)
    monkeypatch.setattr(rig.store.leases, "settle", settle)
    assert await one.receive() == []
    assert len(await rig.dead_letters()) == 1
    await rig.pass_time(31)
    assert await one.receive() == []
    described = await one.ask(DescribeGroup(group="g"))
    assert [found.waiting for found in described.queues] == [0, 0]


async def test_a_dead_letter_of_a_message_by_amqp_goes_to_no_copies_and_shows_its_story(rig):
    """Bytes of properties that came by AMQP would be delivered as they were, and the header CC would route again."""
    one = rig.proxy()
    native = {"amqp": {"properties": b"\x00\x00", "cc": ["t.other"], "copies": ["t/other"]}, "mqtt": {"a": 1}}
    await put(rig.store, encode(Message(address="t/x", body=b"1", native=native)), queue=A)
    await one.create(attempts=1, dead_letter="dead/letters")
    await one.give_back(*await one.receive())
    assert await one.receive() == []
    (letter,) = await rig.dead_letters()
    assert letter.native == {"mqtt": {"a": 1}}


async def test_what_has_expired_is_settled_and_not_leased(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"short"]}, expires_at_ms=rig.clock.ms + 1_000)
    await rig.publish(bodies={A: [b"long"]})
    await one.create()
    await rig.pass_time(2)
    assert bodies(await one.receive()) == [b"long"]
    described = await one.ask(DescribeGroup(group="g"))
    assert [found.waiting for found in described.queues] == [0, 0]


async def test_an_ordered_group_leases_one_message_of_a_key_at_a_time(rig):
    one = rig.proxy()
    texts = [encode(Message(address="t/x", body=body)) for body in (b"1", b"2", b"3")]
    await put(rig.store, *texts, queue=A, keys=(7, 7, 8))
    await one.create(ordered=True)
    got = await one.receive()
    assert bodies(got) == [b"1", b"3"]
    (first,) = [received for received in got if received.message.body == b"1"]
    await one.settle(first)
    assert bodies(await rig.proxy().receive()) == [b"2"]


async def test_a_group_that_begins_at_the_end_and_one_that_is_reset(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"old"]})
    await one.create(start="latest")
    await rig.publish(bodies={A: [b"new"]})
    assert bodies(await one.receive(limit=1)) == [b"new"]
    await rig.publish(bodies={A: [b"skipped"]})
    assert await one.ask(ResetGroup(group="g", to="latest")) == {A: 3, B: 0}
    assert await one.receive() == []
    assert (await one.refused(ResetGroup(group="g", to="earliest"))).cause is Cause.CONFLICT


async def test_a_receiver_that_waits_gets_what_comes_and_what_comes_back(rig):
    one, other = rig.proxy(), rig.proxy()
    await one.create()
    waiting = asyncio.ensure_future(one.receive(wait_ms=60_000))
    while not one.lease_groups._waiting:
        await asyncio.sleep(0)
    await rig.publish(bodies={B: [b"1"]})
    (got,) = await waiting
    waiting = asyncio.ensure_future(one.receive(wait_ms=60_000))
    while not one.lease_groups._waiting:
        await asyncio.sleep(0)
    assert await other.give_back(got) == [None]
    (got,) = await waiting
    assert got.deliveries == 2


async def test_waiting_ends_when_the_gateway_ends_and_when_the_group_is_deleted(rig):
    one, other = rig.proxy(), rig.proxy()
    await one.create()
    waits = [asyncio.ensure_future(proxy.receive(wait_ms=60_000)) for proxy in (one, other)]
    while not (one.lease_groups._waiting and other.lease_groups._waiting):
        await asyncio.sleep(0)
    one.groups.stop()
    assert await waits[0] == []
    assert await other.ask(DeleteGroup(group="g"))
    with pytest.raises(Refusal) as refusal:
        await waits[1]
    assert refusal.value.cause is Cause.NOT_FOUND


async def test_a_receiver_that_has_gone_gives_back_what_it_was_leased(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"1"]})
    await one.create()
    gone = Connection()
    gone.gone = True
    assert not await one.ask(ReceiveMessages(group="g"), connection=gone)
    (got,) = await one.receive()
    assert got.deliveries == 1


async def test_nothing_is_leased_to_a_receiver_that_has_left_while_it_waited(rig, monkeypatch):
    """Its connection may look alive: most peers that close their half of one are gone."""
    one = rig.proxy()
    await one.create()
    looked, wait = asyncio.Event(), one.groups.reader.wait

    async def noted(*given):
        looked.set()
        await wait(*given)

    async def waiting_receiver(proxy, connection, number):
        """Returns a receiver that has found nothing and waits."""
        looked.clear()
        request = ReceiveMessages(group="g", wait_ms=60_000)
        waiting = asyncio.ensure_future(proxy.ask(request, connection=connection, token=number))
        await looked.wait()
        return waiting

    monkeypatch.setattr(one.groups.reader, "wait", noted)
    left, other = Connection(), Connection()
    waiting = await waiting_receiver(one, left, 1)
    left.ended = True
    await rig.publish(bodies={A: [b"1"]})
    assert await waiting == ()
    (got,) = await one.receive()
    assert got.deliveries == 1
    assert await one.settle(got) == [None]
    waiting, going_on = [await waiting_receiver(one, other, number) for number in (7, 9)]
    one.groups.waits.give_up(other, 7)
    one.groups.waits.give_up(other, 7)
    assert await waiting == ()
    await rig.publish(bodies={A: [b"2"]})
    (got,) = await going_on
    assert (got.message.body, got.deliveries) == (b"2", 1)


async def test_a_receiver_that_gives_up_before_it_begins_is_leased_nothing(rig):
    """A client of HTTP/2 resets its stream as soon as it has sent its request."""
    one, connection = rig.proxy(), Connection()
    await rig.publish(bodies={A: [b"1"]})
    await one.create()
    one.groups.waits.give_up(connection, 7)
    request = ReceiveMessages(group="g", wait_ms=60_000)
    assert await one.ask(request, connection=connection, token=7) == ()
    (got,) = await one.receive()
    assert got.deliveries == 1


async def test_a_receiver_that_gives_up_while_it_is_leased_messages_gives_them_back(rig, monkeypatch):
    one, connection = rig.proxy(), Connection()
    await rig.publish(bodies={A: [b"1"]})
    await one.create()
    take = rig.store.leases.take

    async def slow(*given, **named):
        found = await take(*given, **named)
        one.groups.waits.give_up(connection, 7)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(rig.store.leases, "take", slow)
        assert await one.ask(ReceiveMessages(group="g"), connection=connection, token=7) == ()
    (got,) = await one.receive()
    assert got.deliveries == 1


async def test_a_receiver_that_leaves_as_messages_come_gives_them_back(rig, monkeypatch):
    """It has waited, so it was not one that sends its requests and closes its half at once."""
    one, connection = rig.proxy(), Connection()
    await one.create()
    looked, take, wait = asyncio.Event(), rig.store.leases.take, one.groups.reader.wait

    async def noted(*given):
        looked.set()
        await wait(*given)

    async def slow(*given, **named):
        found = await take(*given, **named)
        connection.ended |= bool(found)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(rig.store.leases, "take", slow)
        patched.setattr(one.groups.reader, "wait", noted)
        waiting = asyncio.ensure_future(one.ask(ReceiveMessages(group="g", wait_ms=60_000), connection=connection))
        await looked.wait()
        await rig.publish(bodies={A: [b"1"]})
        assert await waiting == ()
    (got,) = await one.receive()
    assert got.deliveries == 1


async def test_a_handle_is_good_for_its_group_alone_and_not_after_its_deletion(rig):
    one = rig.proxy()
    await rig.publish(bodies={A: [b"1"]})
    await one.create()
    await one.create(group="h")
    (got,) = await one.receive()
    assert causes(await one.settle(got, group="h")) == [Cause.MALFORMED]
    for text in ("", "x", "é", "A" * 5_000, got.handle[:-2] + "AA", got.handle.swapcase()):
        assert causes(await one.ask(SettleReceived(group="g", handles=[text]))) == [Cause.MALFORMED]
        assert causes(await one.ask(ReturnReceived(group="g", handles=[text]))) == [Cause.MALFORMED]
        assert causes(await one.ask(ExtendReceived(group="g", handles=[text]))) == [Cause.MALFORMED]
    assert await one.ask(DeleteGroup(group="g"))
    await one.create()
    assert causes(await one.settle(got)) == [Cause.MALFORMED]
    assert len(await one.receive()) == 1, "the new group begins at the beginning"


async def test_what_a_group_is_cannot_be_taken_for_the_other_kind(rig):
    one = rig.proxy()
    await one.create(group="leases", terms=LIMITED)
    member = await one.join("members")
    assert (await one.refused(JoinGroup(group="leases", topic="t"))).cause is Cause.CONFLICT
    assert (await one.refused(PollGroup(group="leases", member=member))).cause is Cause.CONFLICT
    for request in (
        ReceiveMessages(group="members"),
        SettleReceived(group="members", handles=[]),
        CreateLeaseGroup(group="members", topic="t"),
        CreateLeaseGroup(group="leases", topic="t"),
    ):
        assert (await one.refused(request)).cause is Cause.CONFLICT
    assert (await one.refused(ReceiveMessages(group="nobody"))).cause is Cause.NOT_FOUND
    listed = await one.ask(ListGroups())
    assert [(found.group, found.strategy) for found in listed.groups] == [("leases", "leases"), ("members", "averaged")]
    assert (await one.ask(DescribeGroup(group="leases"))).terms == LIMITED


@pytest.mark.parametrize(
    "request_",
    [
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(attempts=1)),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(dead_letter="dead/x")),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(attempts=1, dead_letter="a/#")),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(attempts=0, dead_letter="dead/x")),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(lease_s=0)),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(lease_s=43_201)),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(retry_s=-1)),
        CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(retry_max_s=86_401)),
        CreateLeaseGroup(group="g", topic="t", start="middle"),
        CreateLeaseGroup(group="g/h", topic="t"),
        CreateLeaseGroup(group="g", topic=""),
        ReceiveMessages(group="g", lease_s=0),
        ReturnReceived(group="g", handles=[], delay_s=-1),
        ExtendReceived(group="g", handles=[], lease_s=1 << 40),
    ],
)
async def test_what_cannot_be_is_malformed(rig, request_):
    one = rig.proxy()
    assert (await one.refused(request_)).cause is Cause.MALFORMED


@pytest.mark.parametrize("address", ["$SYS/x", "$amqp/nobody/k", "t/x"])
async def test_dead_letters_go_where_something_may_be_published(rig, address):
    one = rig.proxy()
    request = CreateLeaseGroup(group="g", topic="t", terms=LeaseTerms(attempts=1, dead_letter=address))
    assert (await one.refused(request)).cause in {Cause.FORBIDDEN, Cause.NOT_FOUND, Cause.CONFLICT}


async def test_limits(rig, monkeypatch):
    one = rig.proxy(GroupsConfig(groups_max=1, response_bytes_max=10))
    await one.create()
    assert (await one.refused(CreateLeaseGroup(group="h", topic="t"))).cause is Cause.QUOTA
    many = SettleReceived(group="g", handles=["x"] * (HANDLES_COUNT_MAX + 1))
    assert (await one.refused(many)).cause is Cause.TOO_LARGE
    monkeypatch.setattr("store.leases.leases.TIMED_LEASES_MAX", 3)
    assert policy.TIMED_LEASES_MAX == 100_000
    await rig.publish(bodies={A: [b"%d" % n for n in range(9)]})
    got = []
    while more := await one.receive(limit=2):
        got += more
    assert len(got) == 3
    await one.settle(got[0])
    assert len(await one.receive()) == 1


async def test_groups_created_at_once_pass_no_limit(rig):
    """All of them counted what was there before the first one was done."""
    one = rig.proxy(GroupsConfig(groups_max=3))
    creating = [one.create(name, start="latest") for name in "abcde"]
    joining = [one.ask(JoinGroup(group=name, topic="t")) for name in "xyz"]
    done = await asyncio.gather(*creating, *joining, return_exceptions=True)
    assert sum(getattr(found, "cause", None) is Cause.QUOTA for found in done) == 5
    assert len((await one.ask(ListGroups())).groups) == 3


async def test_rights(rig):
    """Users who may read all of a topic make a group of it, receive and settle."""
    one = rig.proxy()
    await one.create()

    def user(*allowed):
        rules = [
            AccessRule(effect="allow", actions=(action,), filters=(pattern,))
            for action, _, pattern in (text.partition(":") for text in allowed)
        ]
        identity = Identity(name="ada")
        access = AccessRules(AccessConfig(default="deny", rules=tuple(rules))).access(identity)
        return Principal(name="ada", permissions=Permissions(identity, access))

    reader, group = user("subscribe:$group/g", "subscribe:t/#"), user("subscribe:$group/g", "subscribe:t/a")
    creating = CreateLeaseGroup(group="h", topic="t", terms=LIMITED)
    assert (await one.refused(creating, group)).cause is Cause.FORBIDDEN
    assert (await one.ask(creating, reader)).created  # the table of requests asks for the right to its dead letters
    for request in (
        ReceiveMessages(group="g"),
        SettleReceived(group="g", handles=[]),
        ReturnReceived(group="g", handles=[]),
        ExtendReceived(group="g", handles=[]),
    ):
        assert (await one.refused(request, group)).cause is Cause.FORBIDDEN
        await one.ask(request, reader)


@pytest.mark.parametrize("left", ["t/#", "$group/g"])
async def test_a_receiver_that_waits_is_told_when_a_right_is_revoked(rig, left):
    one = rig.proxy()
    await one.create()

    def access(*filters):
        rules = tuple(AccessRule(effect="allow", filters=(pattern,)) for pattern in filters)
        return AccessRules(AccessConfig(default="deny", rules=rules)).access(Identity(name="ada"))

    ada = Principal(name="ada", permissions=Permissions(Identity(name="ada"), access("t/#", "$group/g")))
    waiting = asyncio.ensure_future(one.refused(ReceiveMessages(group="g", wait_ms=60_000), ada))
    await asyncio.sleep(0)
    ada.permissions.access = access(left)
    for listener in rig.topics.listeners:
        listener()
    async with asyncio.timeout(30):
        assert (await waiting).cause is Cause.FORBIDDEN


# ---- histories


class History:
    """Receivers that do by chance whatever receivers may do; what they know of each message."""

    def __init__(self, rig, chance):
        self.rig, self.chance = rig, chance
        self.proxies = [rig.proxy(), rig.proxy()]
        self.published = 0
        self.held = {}  # by body: the message as it was received last, and when its lease ends at the earliest
        self.settled, self.late = set(), set()  # while they were leased, and after that

    async def receive(self):
        for one in await self.chance.choice(self.proxies).receive(limit=self.chance.randrange(1, 6)):
            assert one.message.body not in self.settled, "what was settled is leased again"
            self.held[one.message.body] = one, self.rig.clock.ms + 10_000

    async def publish(self):
        count = self.chance.randrange(1, 5)
        some = [b"%d" % n for n in range(self.published, self.published + count)]
        self.published += count
        await self.rig.publish(bodies={self.chance.choice([A, B]): some})

    async def finish_one(self):
        if self.held:
            body = self.chance.choice(sorted(self.held))
            one, until_ms = self.held.pop(body)
            proxy = self.chance.choice(self.proxies)
            if self.chance.random() < 0.6:
                if await proxy.settle(one) == [None]:
                    (self.settled if self.rig.clock.ms < until_ms else self.late).add(body)
            else:
                await proxy.give_back(one, delay_s=self.chance.choice([None, 0, 5]))

    async def extend_one(self):
        if self.held:
            one, _ = self.chance.choice(list(self.held.values()))
            request = ExtendReceived(group="g", handles=[one.handle], lease_s=self.chance.randrange(10, 30))
            await self.chance.choice(self.proxies).ask(request)

    async def wait(self):
        await self.rig.pass_time(self.chance.randrange(1, 15))


@pytest.mark.parametrize("seed", range(8))
async def test_each_message_is_settled_or_a_dead_letter_in_the_end(rig, seed):
    """An acknowledgement that comes when its lease is over may find the message settled as a dead letter."""
    chance = random.Random(seed)
    history = History(rig, chance)
    limit = chance.choice([{}, {"attempts": 3, "dead_letter": "dead/x"}])
    await history.proxies[0].create(lease_s=10, retry_s=chance.choice([0, 2]), ordered=chance.random() < 0.3, **limit)
    steps = [history.publish, history.receive, history.finish_one, history.extend_one, history.wait]
    for _ in range(60):
        await chance.choices(steps, weights=(5, 6, 5, 1, 3))[0]()
    idle = 0
    while idle < 5:
        received = await history.proxies[0].receive(limit=100)
        assert history.settled.isdisjoint(bodies(received))
        assert await history.proxies[1].settle(*received) == [None] * len(received)
        history.settled.update(bodies(received))
        idle = 0 if received else idle + 1
        await rig.pass_time(31)
    dead = {letter.body for letter in await rig.dead_letters()}
    assert history.settled | history.late | dead == {b"%d" % n for n in range(history.published)}
    assert history.settled.isdisjoint(dead)
