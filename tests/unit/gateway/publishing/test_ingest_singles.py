"""Single messages take the short way into frames, and every promise of the long one holds for them."""

import pytest

from controller.api.client import GroupConfig
from controller.api.commands import AddGroup, ClusterLimits, CreateTopic
from controller.node.local import LocalController
from gateway.domain.errors import Cause, Refusal
from gateway.port.single import Single
from gateway.publishing.publishing import FRAME_PAYLOAD_BYTES, FRAME_ROWS
from gateway.publishing.singles import GATHERED_MAX
from store.api.message import Message
from store.base.errors import StoreOverloaded, StoreUnreachable
from store.format.frame import FRAME_ASYNC
from tests.support.gateway.ingest_rig import SinglesPublisher, SinglesRig

pytestmark = pytest.mark.anyio


def message(body=b"x", address="t/1", device="d1", **fields):
    return Message(address, body, 5, "mqtt", device, **fields)


@pytest.fixture
async def controller(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(default_queues=4), now_ms=lambda: 0)
    await controller.do(CreateTopic(name="t"))
    yield controller
    await controller.close()


@pytest.fixture
async def rig(controller):
    rig = SinglesRig(controller)
    rig.know("t/1", "t/2")
    return rig


@pytest.fixture
async def two(tmp_path):
    controller = LocalController.open(tmp_path, limits=ClusterLimits(default_queues=4), now_ms=lambda: 0)
    for group in (0, 1):
        await controller.do(AddGroup(number=group, config=GroupConfig()))
    await controller.do(CreateTopic(name="t"))
    rig = SinglesRig(controller, (0, 1))
    rig.know("t/1")
    yield rig
    await controller.close()


def devices(rig, group):
    """Returns a device whose messages are stored in this group."""
    route = rig.router.resolve("t/1")
    return next(
        name
        for name in map("d{}".format, range(1000))
        if rig.router.groups[route.near[rig.router.key_hash(name) % len(route.near)]] == group
    )


async def test_singles_of_a_turn_are_one_frame_and_each_is_acknowledged(rig):
    publishers = [SinglesPublisher() for _ in range(3)]
    for n, publisher in enumerate(publishers):
        rig.single(publisher, message(b"%d" % n), b"ack%d" % n)
    assert rig.ingest.waiting_bytes == 30
    assert not rig.ingest.idle
    rig.turn()
    assert rig.ingest.waiting_bytes == 0
    assert not rig.ingest.idle
    assert not any(publisher.answers for publisher in publishers)
    assert len(rig.log.waiting) == 1
    rig.log.end_next()
    assert [publisher.answers for publisher in publishers] == [[(b"ack%d" % n, 10)] for n in range(3)]
    assert rig.log.bodies == [b"0", b"1", b"2"]
    assert rig.counted("t", "stored") == 3
    assert rig.rested()


async def test_few_singles_wait_for_the_frame_under_way(rig):
    publishers = [SinglesPublisher() for _ in range(4)]
    for publisher in publishers[:3]:
        rig.single(publisher, message())
        rig.turn()
    assert [frame.row_count for frame, _ in rig.log.waiting] == [1]
    assert rig.ingest.waiting_bytes == 20
    assert not rig.ingest.idle
    rig.log.end_next()
    rig.turn()
    assert [frame.row_count for frame, _ in rig.log.waiting] == [2]
    rig.single(publishers[3], message())
    rig.turn()
    rig.log.end_next(StoreOverloaded("busy"))  # a frame that is refused ends, too
    rig.turn()
    rig.log.end_next()
    answers = [publisher.answers for publisher in publishers]
    by_the_way_of_all = [(1000, 10)]  # as its group has refused a frame
    assert answers == [[(b"ack", 10)], [(Cause.OVERLOAD, 10)], [(Cause.OVERLOAD, 10)], by_the_way_of_all]
    assert rig.rested()


@pytest.mark.parametrize("behind", ["many", "published"])
async def test_singles_that_are_many_or_not_alone_wait_for_no_frame(rig, behind):
    rig.single(SinglesPublisher(), message())
    rig.turn()
    for _ in range(GATHERED_MAX if behind == "many" else 1):
        rig.single(SinglesPublisher(), message())
    if behind == "published":
        rig.publish(SinglesPublisher(), 1, message())
    rig.turn()
    assert len(rig.log.waiting) == 2
    assert rig.ingest.waiting_bytes == 0


async def test_singles_wait_for_no_frame_of_a_store_far_away(two):
    for _ in range(2):
        two.single(SinglesPublisher(), message(device=devices(two, 0)))
        two.turn()
    assert len(two.log.waiting) == 2


async def test_what_is_published_behind_a_single_is_answered_behind_it(rig):
    publisher, other = SinglesPublisher(), SinglesPublisher()
    rig.publish(other, 1, message(b"first"))
    rig.single(publisher, message(b"single"))
    rig.publish(publisher, 2, message(b"same turn"))
    rig.turn()
    rig.publish(publisher, 3, message(b"next turn"))
    rig.publish(publisher, 4, message(), denied={0: Refusal(Cause.FORBIDDEN, "no")})
    rig.turn()
    assert publisher.answers == []
    rig.log.end_next()
    assert publisher.answers == [(b"ack", 10), (2, 10)]
    rig.log.end_next()
    assert publisher.answers[2:] == [(3, 10), (Cause.FORBIDDEN, 10)]
    assert rig.log.bodies.index(b"single") < rig.log.bodies.index(b"same turn") < rig.log.bodies.index(b"next turn")
    assert rig.rested()


async def test_what_is_published_behind_several_singles_is_answered_behind_the_last(rig):
    publisher = SinglesPublisher()
    for n in range(2):
        rig.single(publisher, message(b"%d" % n), b"ack%d" % n)
    rig.turn()
    rig.single(publisher, message(b"2"), b"ack2")
    rig.publish(publisher, 5, message(b"behind"))
    rig.turn()
    rig.log.end_next()
    assert publisher.answers == [(b"ack0", 10), (b"ack1", 10)]
    assert not rig.ingest.idle
    rig.log.end_next()
    assert publisher.answers[2:] == [(b"ack2", 10), (5, 10)]
    assert rig.log.bodies == [b"0", b"1", b"2", b"behind"]
    assert rig.rested()


async def test_what_was_published_behind_a_single_is_answered_once(rig):
    publisher = SinglesPublisher()
    for n in range(2):
        rig.single(publisher, message(), b"ack%d" % n)
        rig.turn()
        rig.publish(publisher, n, message())
        rig.turn()
        rig.log.end_next()
        rig.log.end_next()
        assert rig.rested()
    rig.single(publisher, message(), b"last")
    rig.turn()
    rig.log.end_next()
    assert publisher.answers == [(b"ack0", 10), (0, 10), (b"ack1", 10), (1, 10), (b"last", 10)]
    assert rig.rested()


async def test_what_is_published_behind_singles_of_two_groups_waits_for_the_slower(two):
    publisher, slow, fast = SinglesPublisher(), devices(two, 0), devices(two, 1)
    two.single(publisher, message(device=slow), b"slow")
    two.single(publisher, message(device=fast), b"fast")
    two.publish(publisher, 2, message(device=fast))
    two.turn()
    two.store.logs[1].end_next()
    assert publisher.answers == [(b"fast", 10)]
    two.store.logs[0].end_next(StoreOverloaded("busy"))
    assert publisher.answers[1:] == [(Cause.OVERLOAD, 10), (2, 10)]
    assert two.rested()


async def test_a_single_does_not_overtake_one_that_goes_the_way_of_all(rig):
    publisher, other = SinglesPublisher(), SinglesPublisher()
    rig.single(publisher, message(b"new", "new/1"))
    rig.single(publisher, message(b"then"))
    rig.single(other, message(b"other"))
    rig.turn()
    rig.log.end_next()
    assert rig.log.bodies == [b"other"]
    rig.ingest.resume("new", Refusal(Cause.QUOTA, "too many topics"))
    rig.log.end_next()
    assert publisher.answers == [(Cause.QUOTA, 10), (1001, 10)]
    assert rig.log.bodies == [b"other", b"then"]
    assert rig.rested()


async def test_a_refusal_that_needs_no_write_waits_for_the_single_before_it(rig):
    publisher = SinglesPublisher()
    rig.single(publisher, message())
    rig.publish(publisher, 2, message(), denied={0: Refusal(Cause.FORBIDDEN, "no")})
    rig.turn()
    assert publisher.answers == []
    rig.log.end_next()
    assert publisher.answers == [(b"ack", 10), (Cause.FORBIDDEN, 10)]
    assert rig.rested()


async def test_a_store_group_that_is_faster_answers_nothing_before_the_single_of_another(two):
    publisher, slow, fast = SinglesPublisher(), devices(two, 0), devices(two, 1)
    two.single(publisher, message(device=slow))
    two.publish(publisher, 2, message(device=fast))
    two.turn()
    two.store.logs[1].end_next()
    assert publisher.answers == []
    two.store.logs[0].end_next()
    assert publisher.answers == [(b"ack", 10), (2, 10)]
    assert two.rested()


async def test_singles_go_to_their_groups_and_fail_with_them_alone(two):
    names = [devices(two, 0), devices(two, 1)] * 2
    publishers = [SinglesPublisher() for _ in names]
    for publisher, name in zip(publishers, names, strict=True):
        two.single(publisher, message(name.encode(), device=name))
    two.turn()
    assert [len(log.waiting) for log in two.store.logs.values()] == [1, 1]
    two.store.logs[0].end_next(StoreOverloaded("busy"))
    two.store.logs[1].end_next()
    assert [one.answers for one in publishers] == [[(Cause.OVERLOAD, 10)], [(b"ack", 10)]] * 2
    assert (two.counted("t", "stored"), two.counted("t", "overload")) == (2, 2)
    assert two.rested()


async def test_while_a_group_is_away_singles_go_the_way_of_all(two):
    first, then = SinglesPublisher(), SinglesPublisher()
    here, away = devices(two, 0), devices(two, 1)
    two.single(first, message(device=away))
    two.turn()
    two.store.logs[1].end_next(StoreUnreachable("gone"))
    assert first.answers == [(Cause.UNAVAILABLE, 10)]
    assert two.ingest._outgoing.refusing
    two.single(then, message(device=here))
    two.turn()
    two.store.logs[0].end_next()
    assert then.answers == [(1000, 10)]
    assert two.rested()


async def test_a_failed_single_fails_before_what_came_behind_it(rig):
    publisher = SinglesPublisher()
    rig.single(publisher, message())
    rig.turn()
    rig.publish(publisher, 2, message())
    rig.turn()
    rig.log.end_next(StoreOverloaded("busy"))
    rig.log.end_next()
    assert publisher.answers == [(Cause.OVERLOAD, 10), (2, 10)]
    assert rig.rested()


async def test_a_single_that_is_too_large_is_refused_in_order(rig):
    publisher = SinglesPublisher()
    rig.single(publisher, message(bytes(1001)))
    rig.publish(publisher, 2, message(b"behind"))
    rig.turn()
    rig.log.end_next()
    assert publisher.answers == [(Cause.TOO_LARGE, 10), (2, 10)]
    assert rig.log.bodies == [b"behind"]
    assert rig.rested()


async def test_a_single_of_a_full_body_with_a_long_envelope_is_stored(rig):
    publisher = SinglesPublisher()
    rig.single(publisher, message(bytes(1000)))
    rig.turn()
    rig.log.end_next()
    assert publisher.answers == [(1000, 10)]


async def test_a_single_for_a_missing_topic_waits_for_it_and_others_do_not_wait(rig):
    waiting, other = SinglesPublisher(), SinglesPublisher()
    rig.single(waiting, message(b"new", "new/1"))
    rig.publish(waiting, 2, message(b"behind"))
    rig.single(other, message(b"known"))
    rig.turn()
    assert rig.wanted == ["new"]
    assert len(rig.log.waiting) == 1
    rig.log.end_next()
    assert other.answers == [(b"ack", 10)]
    rig.single(other, message(b"known again"))
    rig.turn()
    rig.log.end_next()
    assert len(other.answers) == 2
    assert waiting.answers == []
    rig.ingest.resume("new", Refusal(Cause.QUOTA, "too many topics"))
    rig.log.end_next()
    assert waiting.answers == [(Cause.QUOTA, 10), (2, 10)]
    assert rig.log.bodies == [b"known", b"known again", b"behind"]
    assert rig.rested()


async def test_a_single_of_an_unknown_address_that_comes_while_another_topic_is_made(rig):
    first, then = SinglesPublisher(), SinglesPublisher()
    rig.publish(first, 1, message(b"a", "new/1"))
    rig.turn()
    rig.single(then, message(b"b", "newer/1"))
    rig.turn()
    rig.ingest.resume("new", Refusal(Cause.QUOTA, "too many topics"))
    assert rig.wanted == ["new", "newer"]
    rig.ingest.resume("newer", Refusal(Cause.QUOTA, "too many topics"))
    assert (first.answers, then.answers) == ([(Cause.QUOTA, 10)], [(Cause.QUOTA, 10)])
    assert rig.rested()


async def test_a_single_for_named_queues_gets_its_rows_there(rig):
    rig.router.bind("t/2", 900, key="all")
    rig.know("t/2")
    plain, bound = SinglesPublisher(), SinglesPublisher()
    rig.single(plain, message(b"plain"))
    rig.single(bound, message(b"bound", "t/2"))
    rig.turn()
    assert [frame.row_count for frame, _ in rig.log.waiting] == [3]
    rig.log.end_next()
    assert (plain.answers, bound.answers) == ([(b"ack", 10)], [(1000, 10)])
    assert rig.named == [900]
    assert rig.rested()


async def test_messages_for_very_many_queues_share_no_frame_with_singles(rig):
    for number in range(FRAME_ROWS + 1):
        rig.router.bind("t/many", 1000 + number, key=number)
    single, many = SinglesPublisher(), SinglesPublisher()
    rig.publish(many, 1, message(address="t/many"))
    rig.single(single, message())
    rig.turn()
    assert [frame.row_count for frame, _ in rig.log.waiting] == [1, FRAME_ROWS + 2]


async def test_a_frame_of_singles_waits_for_the_disk_where_one_of_its_topics_does(rig, controller):
    await controller.do(CreateTopic(name="fast", config={"flush": "async"}))
    rig.know("fast/1")
    flags = []
    for turn in (("fast/1", "fast/1"), ("fast/1", "t/1"), ("t/1", "fast/1")):
        for address in turn:
            rig.single(SinglesPublisher(), message(address=address))
        rig.turn()
        flags.append(rig.log.waiting[0][0].flags)
        rig.log.end_next()
    assert flags == [FRAME_ASYNC, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("body", "count"), [(b"", FRAME_ROWS + 10), (bytes(900), FRAME_PAYLOAD_BYTES // 900 + 10)])
async def test_a_long_turn_is_cut_into_frames(rig, body, count):
    publishers = [SinglesPublisher() for _ in range(count)]
    for publisher in publishers:
        rig.single(publisher, message(body))
    rig.turn()
    assert len(rig.log.waiting) == 2
    first, _ = rig.log.waiting[0]
    assert len(first.payload) < FRAME_PAYLOAD_BYTES + 1000
    while rig.log.waiting:
        rig.log.end_next()
    assert all(publisher.answers == [(b"ack", 10)] for publisher in publishers)
    assert len(rig.log.bodies) == count
    assert rig.rested()


async def test_a_single_that_needs_no_sync_waits_for_no_frame(rig, controller):
    await controller.do(CreateTopic(name="fast", config={"flush": "async"}))
    rig.know("fast/1")
    rig.single(SinglesPublisher(), message())
    rig.turn()
    rig.single(SinglesPublisher(), message(address="fast/1"))
    rig.turn()
    assert [frame.flags for frame, _ in rig.log.waiting] == [0, FRAME_ASYNC]


async def test_large_singles_wait_for_no_frame(rig):
    for _ in range(FRAME_PAYLOAD_BYTES // 10 // 10):
        rig.single(SinglesPublisher(), message())
        rig.turn()
        if len(rig.log.waiting) > 1:
            break
    sizes = [frame.row_count for frame, _ in rig.log.waiting]
    assert sizes == [1, GATHERED_MAX]
    rig.ingest.publish_singles([(SinglesPublisher(), Single(message(), b"ack"), FRAME_PAYLOAD_BYTES)])
    rig.turn()
    assert len(rig.log.waiting) == 3
