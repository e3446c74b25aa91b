"""Rules filter on each way inside: publishing in order, live and from the log, lists and pages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.api.commands import ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.delivery import last_value as last_value_module
from gateway.delivery.lanes import Subscriber
from gateway.delivery.last_value import last_values
from gateway.domain.access import OPEN, AccessRules, Identity, Permissions
from gateway.domain.access_settings import AccessConfig, AccessRule
from gateway.domain.errors import Cause, Refusal
from gateway.domain.principal import Principal
from gateway.port.adapter import DONE, Outcome, Publish, SubscriptionId, Token
from gateway.port.kv import ListKeys, NextChanges, WatchKeys
from gateway.port.reads import LastValues
from gateway.publishing.publishing import with_denied
from store.api.message import Message
from store.format.frame import LogOffset, Position
from store.local.local import LocalStore
from tests.support.gateway.asking import ask
from tests.support.gateway.fanout_rig import FanoutRig, Receiver
from tests.support.gateway.ingest_rig import IngestRig, Publisher
from tests.support.gateway.kv_rig import KvRig
from tests.support.gateway.last_values import publish

pytestmark = pytest.mark.anyio

NO = Refusal(Cause.FORBIDDEN, "no")
FULL = Refusal(Cause.TOO_LARGE, "large")


def permissions(*filters):
    rules = (AccessRule(effect="allow", filters=filters),) if filters else ()
    return Permissions(
        Identity(name="x"), AccessRules(AccessConfig(default="deny", rules=rules)).access(Identity(name="x"))
    )


@pytest.fixture
async def rig(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(default_queues=4), now_ms=lambda: 0)
    await controller.do(CreateTopic(name="t"))
    yield IngestRig(controller)
    await controller.close()


@pytest.fixture
async def store(tmp_path):
    async with await LocalStore.open(tmp_path, cache_bytes_max=0) as store:
        yield store


# ---- publishing


async def test_what_is_denied_is_refused_in_its_turn_and_the_rest_is_stored(rig):
    publisher = Publisher()
    messages = [Message(f"t/{n}", b"%d" % n, device="d") for n in range(4)]
    large = Message("t/x", b"x" * 5_000, device="d")
    rig.ingest.publish(publisher, Publish(messages, Token(1)), 10, {0: NO, 2: NO})
    rig.ingest.publish(publisher, Publish(messages[:2], Token(2)), 10, {0: NO, 1: NO})
    rig.ingest.publish(publisher, Publish([messages[0], large, messages[1]], Token(3)), 10, {0: NO})
    rig.ingest.publish(publisher, Publish(messages[:1], Token(4)), 10)
    rig.turn()
    assert not publisher.outcomes
    rig.log.end_next()
    found = dict(publisher.outcomes)
    assert list(found) == [1, 2, 3, 4]
    assert found[1].refused == {0: NO, 2: NO}
    assert {index: positions[0].row for index, positions in found[1].stored(4).items()} == {1: 0, 3: 1}
    assert found[2].refused == {0: NO, 1: NO}
    assert found[2].stored(2) == {}
    assert {index: one.cause for index, one in found[3].refused.items()} == {0: Cause.FORBIDDEN, 1: Cause.TOO_LARGE}
    assert {index: positions[0].row for index, positions in found[3].stored(3).items()} == {2: 2}
    assert [message.body for message in rig.messages()] == [b"1", b"3", b"1", b"0"]
    assert rig.ingest.idle


def test_an_error_of_the_whole_stays_one():
    outcome = Outcome(error=NO)
    assert with_denied(outcome, {0: FULL}) is outcome
    assert with_denied(DONE, {1: NO}).refused == {1: NO}


@given(st.lists(st.sampled_from(["denied", "refused", "stored"]), max_size=12), st.booleans())
def test_indexes_are_those_of_what_was_published(fates, spread):
    """Whatever was denied before, an outcome of the rest says of each message what became of it."""
    kept = [index for index, fate in enumerate(fates) if fate != "denied"]
    refused = {n: FULL for n, index in enumerate(kept) if fates[index] == "refused"}
    stored = [n for n, index in enumerate(kept) if fates[index] == "stored"]
    positions = {n: (Position(LogOffset(64), row),) for row, n in enumerate(stored)}
    if spread:
        outcome = Outcome(refused=refused, positions=positions)
    else:
        outcome = Outcome(refused=refused, first=Position(LogOffset(64), 0) if stored else None)
    denied = {index: NO for index, fate in enumerate(fates) if fate == "denied"}
    found = with_denied(outcome, denied)
    assert {index: one.cause for index, one in found.refused.items()} == {
        index: Cause.FORBIDDEN if fate == "denied" else Cause.TOO_LARGE
        for index, fate in enumerate(fates)
        if fate != "stored"
    }
    assert [positions[0].row for _, positions in sorted(found.stored(len(fates)).items())] == list(range(len(stored)))
    assert sorted(found.stored(len(fates))) == [index for index, fate in enumerate(fates) if fate == "stored"]


# ---- delivering


async def test_live_and_from_the_log_the_same_is_left_out():
    rig_ = FanoutRig()
    receiver = Receiver(credit=1)
    subscriber, who = Subscriber(receiver), permissions("a/+")
    rig_.fanout.subscribe(subscriber, SubscriptionId(1), "#", None, permissions=who)
    for n in range(3):
        rig_.log.write(Message("b/1", b"no"), Message("a/1", b"yes%d" % n), Message("a/1/x", b"no"))
    assert receiver.bodies == [b"yes0"]
    receiver.credit = 10
    rig_.fanout.wake(subscriber)
    await rig_.settle()
    assert receiver.bodies == [b"yes0", b"yes1", b"yes2"]
    rig_.log.write(Message("b/1", b"no"), Message("a/1", b"yes3"))
    assert receiver.bodies[3:] == [b"yes3"]


async def test_each_subscription_of_a_connection_has_its_own_reader():
    rig_ = FanoutRig()
    receiver = Receiver()
    subscriber = Subscriber(receiver)
    for number, who in enumerate((permissions("a/#"), permissions("b/#"), permissions("#")), 1):
        rig_.fanout.subscribe(subscriber, SubscriptionId(number), "#", None, permissions=who)
    rig_.log.write(Message("a", b"a"), Message("b", b"b"), Message("c", b"c"))
    assert receiver.got == [(b"a", (1, 3)), (b"b", (2, 3)), (b"c", (3,))]


async def test_rights_that_change_count_from_the_next_message_on():
    rig_ = FanoutRig()
    receiver = Receiver()
    subscriber, who = Subscriber(receiver), permissions("a")
    rig_.fanout.subscribe(subscriber, SubscriptionId(1), "#", None, permissions=who)
    before = who.access
    for access in (before, permissions("b").access, None, before):
        who.access = access
        rig_.fanout.changed()
        rig_.log.write(Message("a", b"a"), Message("b", b"b"))
    assert receiver.bodies == [b"a", b"b", b"a", b"b", b"a"]


async def test_who_was_restricted_by_nothing_can_come_to_be():
    rig_ = FanoutRig()
    receiver, unknown = Receiver(), Receiver()
    for one in (receiver, unknown):
        rig_.fanout.subscribe(Subscriber(one), SubscriptionId(1), "#", None)
    rig_.log.write(Message("b", b"before"))
    rig_.fanout.restrict(lambda one, _: permissions("a") if one is receiver else OPEN)
    rig_.log.write(Message("a", b"a"), Message("b", b"b"))
    assert receiver.bodies == [b"before", b"a"]
    assert unknown.bodies == [b"before", b"a", b"b"]


async def test_a_subscription_that_ends_leaves_no_permissions():
    rig_ = FanoutRig()
    subscriber = Subscriber(Receiver())
    rig_.fanout.subscribe(subscriber, SubscriptionId(1), "#", None, permissions=permissions("a"))
    rig_.fanout.unsubscribe(subscriber, SubscriptionId(1))
    assert subscriber.permissions == {}


# ---- lists


async def test_pages_of_last_values_name_nothing_that_may_not_be_read(store, monkeypatch):
    await publish(store, *(Message(f"s/{n}/{kind}", b"%d" % n) for n in range(9) for kind in ("no", "yes")))
    monkeypatch.setattr(last_value_module, "PAGE", 2)
    monkeypatch.setattr(last_value_module, "LOOKED_MAX", 3)
    reads = permissions("s/+/yes").reads
    found, after = [], ""
    for _ in range(20):
        page = await last_values(store, LastValues(pattern="s/#", after=after, limit=2), now_ms=50, readable=reads)
        found += [message.address for message in page.messages]
        if page.after is None:
            break
        assert page.after.endswith("yes")
        after = page.after
    assert found == [f"s/{n}/yes" for n in range(9)]


async def test_pages_of_keys_have_what_may_be_read_and_go_on(tmp_path):
    async with await LocalStore.open(tmp_path) as opened:
        rig_ = KvRig(opened)
        for n in range(20):
            await rig_.put(f"{n:02}/{'yes' if n % 7 == 0 else 'no'}")
        who = Principal(name="", permissions=permissions("$kv/default/+/yes"))
        found, after = [], None
        while True:
            page = await ask(rig_.one, ListKeys(limit=3, after=after), who=who, keys=rig_.keys)
            found += [entry.key for entry in page.entries]
            if not page.more:
                break
            after = page.entries[-1].key
        assert found == ["00/yes", "07/yes", "14/yes"]


async def test_a_watch_tells_what_may_be_read_when_it_happens(tmp_path):
    async with await LocalStore.open(tmp_path) as opened:
        rig_ = KvRig(opened)
        who = Principal(name="", permissions=permissions("$kv/default/a/#"))
        await ask(rig_.one, WatchKeys(watch=1), who=who, keys=rig_.keys)
        for key in ("b/1", "a/1", "b/2"):
            await rig_.put(key)
        changes = await rig_.ask(NextChanges(watch=1))
        assert [change.key for change in changes.changes] == ["a/1"]
        who.permissions.access = permissions("$kv/default/b/#").access
        for key in ("a/2", "b/3"):
            await rig_.put(key)
        keys = []
        while "b/3" not in keys:
            keys += [change.key for change in (await rig_.ask(NextChanges(watch=1))).changes]
        assert not [key for key in keys if key.startswith("a/")]
        await rig_.keys.leave(rig_.one)
