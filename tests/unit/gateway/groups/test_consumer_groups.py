"""Consumer groups over a real store: members, queues that change hands, offsets, and what is refused."""

import asyncio

import pytest
from msgspec.structs import replace

from gateway.domain.access import AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Cause
from gateway.domain.principal import Principal
from gateway.groups.joining import QUEUES_COUNT_MAX
from gateway.groups.settings import GroupsConfig
from gateway.groups.state import decode_queue, encode
from gateway.port.groups import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    GroupCursor,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    NotOwned,
    PollGroup,
    RenewMember,
    ResetGroup,
)
from store.base.errors import OffsetOutOfRange
from store.local.local import LocalStore
from tests.support.gateway.groups_rig import FIRST, Connection, GroupsProxy, Topics, bodies, publish
from tests.support.process.clock import Clock

pytestmark = pytest.mark.anyio

CONFIG = GroupsConfig(release_s=30)
A, B, C, D = range(FIRST, FIRST + 4)


class ProxiesOfGroups:
    def __init__(self, store, clock):
        self.store, self.clock = store, clock
        self.topics = Topics(t=4)
        self.proxies = []

    def proxy(self, config=CONFIG, **options):
        seed = len(self.proxies) + 1
        self.proxies.append(GroupsProxy(self.store, self.topics, self.clock, seed=seed, config=config, **options))
        return self.proxies[-1]

    async def pass_time(self, seconds):
        self.clock.ms += int(seconds * 1_000)
        await self.store.keys.look()

    async def publish(self, **fields):
        await publish(self.store, fields.pop("bodies"), **fields)

    async def records(self):
        return [entry.key for entry in await self.store.keys.prefix("consumer-groups/")]


@pytest.fixture
async def rig(tmp_path):
    clock = Clock()
    async with await LocalStore.open(tmp_path, now_ms=clock.now_ms) as store:
        rig = ProxiesOfGroups(store, clock)
        yield rig
        for proxy in rig.proxies:
            await proxy.die()


@pytest.fixture
async def two(rig):
    return rig, rig.proxy(), rig.proxy()


async def described(proxy, group="g"):
    found = await proxy.ask(DescribeGroup(group=group))
    return {one.queue: (one.offset, one.member) for one in found.queues}


# ---- one member


async def test_one_member_reads_everything_from_the_beginning(two):
    rig, one, _ = two
    await rig.publish(bodies={A: [b"1", b"2"], C: [b"3"]})
    me = await one.join()
    got = await one.poll(me)
    assert sorted(bodies(got)) == [(A, 0, b"1"), (A, 1, b"2"), (C, 0, b"3")]
    assert list(got.queues) == [A, B, C, D]
    assert list(got.revoked) == []
    assert dict(got.after.offsets) == {A: 2, C: 1}
    assert got.messages[0][2].id
    assert sorted(bodies(await one.poll(me))) == sorted(bodies(got)), "nothing was committed"
    assert bodies(await one.poll(me, got.after)) == []
    assert await one.commit(me, got.after) == {A: 2, C: 1}
    assert bodies(await one.poll(me)) == []


async def test_any_proxy_answers_for_a_member(two):
    rig, one, other = two
    await rig.publish(bodies={A: [b"1", b"2", b"3"]})
    me = await one.join()
    got = await other.poll(me, limit=1)
    assert bodies(got) == [(A, 0, b"1")]
    got = await one.poll(me, got.after, limit=1)
    assert bodies(got) == [(A, 1, b"2")]
    await other.commit(me, got.after)
    assert bodies(await one.poll(me)) == [(A, 2, b"3")]


async def test_a_group_that_begins_at_the_end(two):
    rig, one, _ = two
    await rig.publish(bodies={A: [b"old"]})
    me = await one.join(start="latest")
    rig.topics.put("t", range(FIRST, FIRST + 5))
    await rig.publish(bodies={A: [b"new"], FIRST + 4: [b"of a later queue"]})
    assert sorted(bodies(await one.poll(me))) == [(A, 1, b"new"), (FIRST + 4, 0, b"of a later queue")]
    second = await one.join(start="earliest")
    assert bodies(await one.poll(second)) == [], "the group is there, and where it is"


async def test_a_limit_is_shared_by_queues_that_have_something(two):
    rig, one, _ = two
    await rig.publish(bodies={queue: [b"%d" % n for n in range(20)] for queue in (A, B)})
    me = await one.join()
    got = await one.poll(me, limit=10)
    assert len(got.messages) == 10
    assert {queue for queue, _, _ in bodies(got)} == {A, B}
    seen = [got]
    while (got := await one.poll(me, got.after, limit=7)).messages:
        seen.append(got)
    every = [item for got in seen for item in bodies(got)]
    assert len(every) == len(set(every)) == 40
    assert [at for queue, at, _ in every if queue == A] == list(range(20))


async def test_an_answer_is_as_long_as_the_configuration_says(rig):
    one = rig.proxy(GroupsConfig(response_bytes_max=1_000))
    await rig.publish(bodies={A: [b"x" * 400] * 5 + [b"y" * 3_000, b"z"]})
    me = await one.join()
    sizes, after = [], None
    while (got := await one.poll(me, after)).messages:
        sizes.append([len(body) for _, _, body in bodies(got)])
        after = got.after
    assert sizes == [[400, 400], [400, 400], [400], [3_000], [1]]


async def test_what_has_expired_is_passed_over(two):
    rig, one, _ = two
    await rig.publish(bodies={A: [b"1"]}, expires_at_ms=rig.clock.ms + 1_000)
    await rig.publish(bodies={A: [b"2"]})
    me = await one.join()
    await rig.pass_time(2)
    got = await one.poll(me)
    assert bodies(got) == [(A, 1, b"2")]
    assert dict(got.after.offsets) == {A: 2}


async def test_who_waits_hears_of_a_message_and_of_the_end(two):
    rig, one, _ = two
    me = await one.join()
    waiting = asyncio.ensure_future(one.poll(me, wait_ms=60_000))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await rig.publish(bodies={B: [b"1"]})
    async with asyncio.timeout(60):
        got = await waiting
    assert bodies(got) == [(B, 0, b"1")]
    waiting = asyncio.ensure_future(one.poll(me, got.after, wait_ms=60_000))
    await asyncio.sleep(0.01)
    one.groups.stop()
    async with asyncio.timeout(60):
        assert bodies(await waiting) == []


async def test_a_member_that_has_left_is_not_waited_for(two):
    _, one, _ = two
    me = await one.join()
    connection = Connection()
    request = PollGroup(group="g", member=me, wait_ms=60_000)
    waiting = asyncio.ensure_future(one.ask(request, connection=connection, token=3))
    await asyncio.sleep(0.01)
    one.groups.waits.give_up(connection, 3)
    async with asyncio.timeout(30):
        assert bodies(await waiting) == []
    connection.ended = True
    async with asyncio.timeout(30):
        assert bodies(await one.ask(request, connection=connection)) == []


async def test_a_topic_that_comes_to_be_is_read(two):
    rig, one, _ = two
    me = await one.join(topic="later")
    waiting = asyncio.ensure_future(one.poll(me, wait_ms=60_000))
    await asyncio.sleep(0.01)
    rig.topics.put("later", [FIRST + 9])
    await rig.publish(bodies={FIRST + 9: [b"1"]})
    async with asyncio.timeout(60):
        assert bodies(await waiting) == [(FIRST + 9, 0, b"1")]


def who_reads(*filters):
    """Returns a user who may read by these filters and manage nothing."""
    rules = tuple(AccessRule(effect="allow", filters=(one,)) for one in filters)
    identity = Identity(name="alice")
    return Principal(
        name="alice",
        permissions=Permissions(identity, AccessRules(AccessConfig(default="deny", rules=rules)).access(identity)),
    )


@pytest.mark.parametrize("filters", [(), ("t/1",), ("u/#",), ("t/+",)])
async def test_who_may_not_read_all_of_a_topic_has_no_part_in_its_groups(two, filters):
    """Or it would pass over, for the group, what it may not read; and offsets tell how much there is."""
    rig, one, _ = two
    await rig.publish(bodies={A: [b"1"]}, address="t/secret")
    other = Principal(name="bob")
    member = await one.join(of=other)
    alice = who_reads(*filters)
    for request in (
        JoinGroup(group="g", topic="t"),
        JoinGroup(group="new", topic="t"),
        PollGroup(group="g", member=member),
        CommitOffsets(group="g", member=member, cursor=GroupCursor(9, {A: 1})),
        RenewMember(group="g", member=member),
        DescribeGroup(group="g"),
        ResetGroup(group="g", to="latest"),
    ):
        assert (await one.refused(request, alice)).cause is Cause.FORBIDDEN
    assert bodies(await one.ask(PollGroup(group="g", member=member), other)) == [(A, 0, b"1")]


async def test_a_denied_user_is_not_told_which_topic_a_group_reads(two):
    _, one, _ = two
    await one.join(of=Principal(name="bob"))
    for request in (DescribeGroup(group="g"), ResetGroup(group="g", to="latest")):
        refusal = await one.refused(request, who_reads())
        assert refusal.detail == "not allowed: to read the topic of the group 'g'"


@pytest.mark.parametrize("left", [(), ("t/#",), ("$group/g",)])
async def test_a_member_that_waits_for_messages_is_told_when_its_right_is_revoked(two, left):
    rig, one, _ = two
    alice = who_reads("t/#", "$group/g")
    me = await one.join(of=alice)
    waiting = asyncio.ensure_future(one.refused(PollGroup(group="g", member=me, wait_ms=60_000), alice))
    await asyncio.sleep(0)
    alice.permissions.access = who_reads(*left).permissions.access
    for listener in rig.topics.listeners:
        listener()
    async with asyncio.timeout(30):
        assert (await waiting).cause is Cause.FORBIDDEN


async def test_a_member_that_loses_the_right_to_its_topic_commits_nothing(two):
    rig, one, _ = two
    alice = who_reads("t/#", "$group/g")
    me = await one.join(of=alice)
    await rig.publish(bodies={A: [b"1"]}, address="t/secret")
    got = await one.ask(PollGroup(group="g", member=me), alice)
    assert bodies(got) == [(A, 0, b"1")]
    alice.permissions.access = who_reads("t/other", "$group/g").permissions.access
    commit = CommitOffsets(group="g", member=me, cursor=got.after)
    for request in (PollGroup(group="g", member=me), commit):
        assert (await one.refused(request, alice)).cause is Cause.FORBIDDEN
    assert await one.ask(LeaveGroup(group="g", member=me), alice)
    bob = Principal(name="bob")
    again = await one.join(of=bob)
    assert bodies(await one.ask(PollGroup(group="g", member=again), bob)) == [(A, 0, b"1")]


@pytest.mark.parametrize("unclean", [False, True])
async def test_a_log_that_has_lost_its_end_sets_a_group_back(two, unclean):
    rig, one, _ = two
    rig.topics.unclean = unclean
    await rig.publish(bodies={A: [b"1", b"2"], B: [b"1"]})
    me = await one.join(ttl_s=60)
    got = await one.poll(me)
    await one.commit(me, got.after)
    key = f"consumer-groups/state/g/q/{A}"  # as if four more had been there
    record = decode_queue((await rig.store.keys.get(key)).value)
    await rig.store.keys.put(key, encode(replace(record, offset=6)))
    beyond = GroupCursor(got.after.generation, {A: 8})
    for _ in range(2):
        assert bodies(await one.poll(me, beyond)) == []
        assert (await described(one))[A] == (6, me), "the end may only be known late"
        await rig.pass_time(3)
    await rig.publish(bodies={A: [b"3"]})
    await one.poll(me, beyond)
    if unclean:
        assert (await described(one))[A] == (2, me)
        assert bodies(await one.poll(me, beyond)) == [(A, 2, b"3")]
        with pytest.raises(NotOwned):
            await one.commit(me, GroupCursor(got.after.generation, {A: 3}))
    else:
        assert (await described(one))[A] == (6, me)


async def test_an_end_that_was_only_known_late_is_forgotten(two):
    rig, one, _ = two
    rig.topics.unclean = True
    await rig.publish(bodies={A: [b"1", b"2"]})
    me = await one.join(ttl_s=60)
    got = await one.poll(me)
    await one.commit(me, got.after)
    fetch = rig.store.queues.fetch

    async def behind(queue, offset, **options):
        raise OffsetOutOfRange(offset, 0, 1)

    for _ in range(3):
        rig.store.queues.fetch = behind
        assert bodies(await one.poll(me)) == []
        await rig.pass_time(9)
        rig.store.queues.fetch = fetch
        assert bodies(await one.poll(me)) == []
        assert (await described(one))[A] == (2, me)


@pytest.mark.slow
async def test_a_queue_that_was_moved_is_read_before_the_one_in_its_place(two):
    rig, one, other = two
    first = await one.join()
    await one.poll(first)
    await rig.publish(bodies={A: [b"1", b"2"]})
    rig.topics.put("t", [B, C, D, D + 1, A], moved={A: D + 1})
    await rig.publish(bodies={D + 1: [b"3"], B: [b"x"]})
    got = await one.poll(first)
    assert sorted(bodies(got)) == [(A, 0, b"1"), (A, 1, b"2"), (B, 0, b"x")]
    assert bodies(await one.poll(first, got.after)) == []
    waiting = asyncio.ensure_future(other.poll(first, got.after, wait_ms=60_000))
    await asyncio.sleep(0.01)
    await one.commit(first, got.after)
    async with asyncio.timeout(60):
        assert bodies(await waiting) == [(D + 1, 0, b"3")]


# ---- several members


async def test_queues_are_handed_over_when_a_member_asks_again(two):
    _, one, other = two
    first = await one.join()
    assert list((await one.poll(first)).queues) == [A, B, C, D]
    second = await other.join()
    assert list((await other.poll(second)).queues) == [], "they are the first one's"
    assert len((await one.poll(first)).queues) == 2
    assert len((await other.poll(second)).queues) == 2
    assert {member for _, member in (await described(one)).values()} == {first, second}


async def test_what_is_read_and_not_committed_is_waited_for(two):
    rig, one, other = two
    await rig.publish(bodies={queue: [b"1", b"2"] for queue in (A, B, C, D)})
    first = await one.join()
    got = await one.poll(first)
    second = await other.join()
    again = await one.poll(first, got.after)
    assert len(again.queues) == 4
    assert len(again.revoked) == 2
    assert list((await other.poll(second)).queues) == []
    await one.commit(first, got.after)
    assert len((await one.poll(first, got.after)).queues) == 2
    taken = await other.poll(second)
    assert list(taken.queues) == list(again.revoked)
    assert bodies(taken) == [], "it goes on behind what was committed"


async def test_a_member_that_only_says_it_is_there_loses_what_it_should_not_have(two):
    rig, one, other = two
    first = await one.join(ttl_s=20)
    await one.poll(first)
    second = await other.join(ttl_s=100)
    renewed = await one.renew(first)
    assert len(renewed.queues) == 4
    assert len(renewed.revoked) == 2
    await rig.pass_time(15)
    assert len((await one.renew(first)).queues) == 4
    await rig.pass_time(15)
    assert len((await one.renew(first)).queues) == 2
    assert len((await other.poll(second)).queues) == 2


async def test_who_joins_wakes_who_waits(two):
    rig, one, other = two
    first = await one.join()
    waiting = asyncio.ensure_future(one.poll(first, wait_ms=60_000))
    await asyncio.sleep(0.02)
    second = await other.join()
    second_waiting = asyncio.ensure_future(other.poll(second, wait_ms=60_000))
    async with asyncio.timeout(60):
        while len([one for _, one in (await described(one)).values() if one == second]) != 2:
            await asyncio.sleep(0.005)
    await rig.publish(bodies={queue: [b"1"] for queue in (A, B, C, D)})
    async with asyncio.timeout(60):
        got = [*bodies(await waiting), *bodies(await second_waiting)]
    assert len(got) >= 2


async def test_a_member_that_leaves_gives_its_queues_up(two):
    _, one, other = two
    first, second = await one.join(), await other.join()
    await one.poll(first)
    await other.poll(second)
    assert await other.leave(first)
    assert not await other.leave(first)
    assert list((await other.poll(second)).queues) == [A, B, C, D]
    refusal = await one.refused(PollGroup(group="g", member=first))
    assert refusal.cause is Cause.NOT_FOUND
    assert "join again" in refusal.detail


async def test_a_member_that_is_not_heard_of_is_replaced_and_cannot_commit(two):
    rig, one, other = two
    await rig.publish(bodies={queue: [b"1", b"2"] for queue in (A, B, C, D)})
    first, second = await one.join(ttl_s=10), await other.join(ttl_s=60)
    got = await one.poll(first, limit=4)
    await rig.pass_time(14)
    taken = await other.poll(second)
    assert list(taken.queues) == [A, B, C, D]
    assert len(taken.messages) == 8
    refusal = await one.refused(CommitOffsets(group="g", member=first, cursor=got.after))
    assert refusal.cause is Cause.NOT_FOUND
    assert {at for at, _ in (await described(one)).values()} == {0}


async def test_each_request_of_a_member_keeps_it_there(two):
    rig, one, other = two
    await rig.publish(bodies={A: [b"1"]})
    me = await one.join(ttl_s=10)
    for ask in (one.poll, other.poll, one.renew, one.poll):
        await rig.pass_time(3)
        await other.poll(me)
        await rig.pass_time(9.9)
        got = await ask(me)
    await rig.pass_time(9.9)
    await one.commit(me, got.after)
    await rig.pass_time(9.9)
    assert len((await one.poll(me)).queues) == 4


async def test_a_commit_from_before_a_queue_was_lost_is_refused(two):
    rig, one, other = two
    await rig.publish(bodies={queue: [b"%d" % n for n in range(9)] for queue in (A, B, C, D)})
    first = await one.join()
    old = await one.poll(first, limit=4)
    second = await other.join()
    await one.poll(first)  # without a cursor: nothing is outstanding
    got = await other.poll(second)
    lost = list(got.queues)
    await other.commit(second, got.after)
    with pytest.raises(NotOwned) as refused:
        await one.commit(first, old.after)
    assert refused.value.queues == lost
    await other.leave(second)
    back = await one.poll(first)
    assert list(back.queues) == [A, B, C, D]
    assert back.after.generation > old.after.generation
    with pytest.raises(NotOwned) as refused:
        await one.commit(first, old.after)
    assert refused.value.queues == lost, "it has them again, since later"
    kept = {queue: at for queue, at in old.after.offsets.items() if queue not in lost}
    assert await one.commit(first, GroupCursor(old.after.generation, kept)) == kept
    assert {at for at, _ in (await described(one)).values()} == {1, 9}


async def test_a_cursor_from_before_a_queue_was_lost_does_not_count(two):
    rig, one, _ = two
    await rig.publish(bodies={A: [b"1", b"2", b"3"]})
    me = await one.join()
    old = await one.poll(me, limit=2)
    await one.ask(ResetGroup(group="g", to="earliest"))
    assert [body for _, _, body in bodies(await one.poll(me, old.after))] == [b"1", b"2", b"3"]


async def test_offsets_do_not_go_back_and_not_behind_the_end(two):
    rig, one, _ = two
    await rig.publish(bodies={A: [b"1", b"2", b"3"]})
    me = await one.join()
    generation = (await one.poll(me)).after.generation
    assert await one.commit(me, GroupCursor(generation, {A: 2})) == {A: 2}
    assert await one.commit(me, GroupCursor(generation, {A: 1, B: 0})) == {A: 2, B: 0}
    refusal = await one.refused(CommitOffsets(group="g", member=me, cursor=GroupCursor(generation, {A: 4})))
    assert refusal.cause is Cause.MALFORMED
    assert f"queue {A} ends at 3" in refusal.detail
    refusal = await one.refused(CommitOffsets(group="g", member=me, cursor=GroupCursor(generation - 1, {A: 3})))
    assert isinstance(refusal, NotOwned)


# ---- operators


async def test_lists_and_descriptions(two):
    rig, one, other = two
    await rig.publish(bodies={A: [b"1", b"2"]})
    for name in ("g", "h", "i"):
        await one.join(name, strategy="consistent_hash")
    page = await other.ask(ListGroups(limit=2))
    assert [(one.group, one.topic, one.strategy) for one in page.groups] == [
        ("g", "t", "consistent_hash"),
        ("h", "t", "consistent_hash"),
    ]
    assert page.after == "h"
    page = await other.ask(ListGroups(limit=2, after="h"))
    assert [one.group for one in page.groups] == ["i"]
    assert page.after is None
    found = await other.ask(DescribeGroup(group="g"))
    assert [one.lag for one in found.queues] == [2, 0, 0, 0]
    assert len(found.members) == 1
    assert (await other.refused(DescribeGroup(group="none"))).cause is Cause.NOT_FOUND


async def test_resets(two):
    rig, one, _ = two
    await rig.publish(bodies={A: [b"1", b"2"], B: [b"1"]})
    rig.clock.ms += 60_000
    late = rig.clock.ms
    await rig.publish(bodies={A: [b"3"]})
    me = await one.join()
    got = await one.poll(me)
    await one.commit(me, got.after)

    async def reset(**asked):
        return await one.ask(ResetGroup(group="g", **asked))

    assert await reset(to="earliest") == {A: 0, B: 0, C: 0, D: 0}
    assert {member for _, member in (await described(one)).values()} == {""}
    assert len((await one.poll(me)).messages) == 4
    assert await reset(to="latest", queues=[A]) == {A: 3}
    assert await reset(time_ms=late) == {A: 2, B: 1, C: 0, D: 0}
    assert [body for _, _, body in bodies(await one.poll(me))] == [b"3"]
    assert await reset(offsets={A: 1, B: 99}) == {A: 1, B: 1}
    for wrong, cause in (
        ({}, Cause.MALFORMED),
        ({"to": "nowhere"}, Cause.MALFORMED),
        ({"to": "latest", "time_ms": 1}, Cause.MALFORMED),
        ({"offsets": {A: 1}, "queues": [A]}, Cause.MALFORMED),
        ({"to": "latest", "queues": [99]}, Cause.NOT_FOUND),
        ({"offsets": {99: 1}}, Cause.NOT_FOUND),
    ):
        assert (await one.refused(ResetGroup(group="g", **wrong))).cause is cause
    assert (await one.refused(ResetGroup(group="none", to="latest"))).cause is Cause.NOT_FOUND


async def test_a_group_without_members_can_be_deleted(two):
    rig, one, _ = two
    me = await one.join()
    await one.poll(me)
    refusal = await one.refused(DeleteGroup(group="g"))
    assert refusal.cause is Cause.CONFLICT
    await one.leave(me)
    assert await one.ask(DeleteGroup(group="g"))
    assert not await one.ask(DeleteGroup(group="g"))
    assert await rig.records() == []
    await one.join(topic="other")


# ---- what is refused


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        ({"group": ""}, Cause.MALFORMED),
        ({"group": "a/b"}, Cause.MALFORMED),
        ({"group": "x" * 65}, Cause.MALFORMED),
        ({"strategy": "none"}, Cause.MALFORMED),
        ({"start": "middle"}, Cause.MALFORMED),
        ({"ttl_s": 1}, Cause.MALFORMED),
        ({"ttl_s": 3_601}, Cause.MALFORMED),
        ({"topic": ""}, Cause.MALFORMED),
        ({"topic": "t" * 1_025}, Cause.MALFORMED),
        ({"topic": "wide"}, Cause.QUOTA),
    ],
)
async def test_who_cannot_join(two, asked, cause):
    rig, one, _ = two
    rig.topics.put("wide", range(100, 101 + QUEUES_COUNT_MAX))
    assert (await one.refused(JoinGroup(**{"group": "g", "topic": "t", **asked}))).cause is cause


async def test_a_group_reads_one_topic_by_one_strategy(two):
    _, one, other = two
    await one.join()
    for asked in ({"topic": "other"}, {"strategy": "consistent_hash"}):
        refusal = await other.refused(JoinGroup(**{"group": "g", "topic": "t", **asked}))
        assert refusal.cause is Cause.CONFLICT
        assert "'t' by averaged" in refusal.detail


async def test_where_topics_do_not_come_by_themselves_they_have_to_be_there(rig):
    one = rig.proxy(may_come=False)
    assert (await one.refused(JoinGroup(group="g", topic="none"))).cause is Cause.NOT_FOUND
    await one.join()


async def test_limits(rig):
    one = rig.proxy(GroupsConfig(groups_max=2, members_max=2, memberships_max=3))
    members = [await one.join(ttl_s=10), await one.join(ttl_s=60)]
    refusal = await one.refused(JoinGroup(group="g", topic="t"))
    assert (refusal.cause, "groups.members_max" in refusal.detail) == (Cause.QUOTA, True)
    await one.join("h", ttl_s=60)
    refusal = await one.refused(JoinGroup(group="i", topic="t"))
    assert (refusal.cause, "groups.memberships_max" in refusal.detail) == (Cause.QUOTA, True)
    refusal = await one.refused(JoinGroup(group="i", topic="t"), Principal(name="alice"))
    assert (refusal.cause, "groups.groups_max" in refusal.detail) == (Cause.QUOTA, True)
    await rig.pass_time(14)
    assert await one.join() not in members


async def test_requests_at_once_pass_no_limit(rig):
    """All of them counted what was there before the first one was done."""
    one, limit = rig.proxy(GroupsConfig(groups_max=5, members_max=5, memberships_max=12)), Cause.QUOTA

    async def at_once(*groups):
        joining = [JoinGroup(group=group, topic="t", start="latest") for group in groups]
        done = await asyncio.gather(*map(one.ask, joining), return_exceptions=True)
        return [getattr(one, "cause", None) for one in done]

    assert await at_once(*["g"] * 9) == [None] * 5 + [limit] * 4
    assert await at_once(*"hhijkl") == [None] * 5 + [limit]
    assert await at_once(*"hijk") == [None] * 2 + [limit] * 2


async def test_a_member_is_its_principals(two):
    _, one, _ = two
    alice, bob = Principal(name="alice"), Principal(name="bob")
    me = await one.join(of=alice)
    cursor = GroupCursor(0, {})
    for request in (
        PollGroup(group="g", member=me),
        CommitOffsets(group="g", member=me, cursor=cursor),
        RenewMember(group="g", member=me),
        LeaveGroup(group="g", member=me),
    ):
        assert (await one.refused(request, bob)).cause is Cause.FORBIDDEN
    assert await one.ask(LeaveGroup(group="g", member=me), alice)


async def test_members_of_groups_that_are_not_there(two):
    _, one, _ = two
    for request in (PollGroup(group="g", member="m"), RenewMember(group="g", member="m")):
        assert (await one.refused(request)).cause is Cause.NOT_FOUND
    assert not await one.leave("m")


async def test_a_group_that_is_made_twice_at_once_is_one(two):
    _, one, other = two
    members = await asyncio.gather(*(proxy.join() for proxy in (one, other) * 5))
    assert len(set(members)) == 10
    assert len((await one.ask(DescribeGroup(group="g"))).members) == 10
