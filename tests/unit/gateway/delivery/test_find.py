"""Messages found by key, address and id over a real store; the directory of addresses; index flags of the router."""

import asyncio
from types import SimpleNamespace

import pytest

from controller.api.client import Topic
from gateway.delivery import find as find_module
from gateway.delivery.find import LOOKED_MAX, find_messages
from gateway.delivery.search_cursors import CursorSeal
from gateway.domain.address import hash64
from gateway.domain.errors import Cause, Refusal
from gateway.port.reads import FindMessages
from gateway.publishing.routing.directory import PENDING_MAX, Directory
from gateway.publishing.routing.router import Router
from store.api.log import IndexKind
from store.api.message import Message
from store.base.errors import CorruptFrame, StoreClosed
from store.format.frame import HEADER, ROW, ROW_INDEX_ADDRESS, ROW_INDEX_KEY, Position, UnplacedFrame
from store.local.local import LocalStore
from tests.support.gateway.find_frames import BOTH, frame
from tests.support.store.store_kit import append

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store(tmp_path):
    clock = iter(range(1_000, 1 << 40, 1_000))
    async with await LocalStore.open(tmp_path, now_ms=lambda: next(clock), linger_s=3600) as store:
        yield store


async def find(store, *, now_ms=0, indexed=lambda _kind, _text: True, **asked):
    return await find_messages(store, FindMessages(**asked), now_ms=now_ms, indexed=indexed)


def said(found):
    return [message.body for message in found.messages]


async def test_newest_first_with_ids_filled_in(store):
    first = await append(store, frame(Message("a/1", b"1", device="d"), Message("a/2", b"2", device="e")))
    await append(store, frame(Message("a/1", b"3", device="e", key="d", id="mine")))
    found = await find(store, key="d")
    assert [(m.body, m.id) for m in found.messages] == [(b"3", "mine"), (b"1", str(Position(first.frame, 0)))]
    assert found.after is None
    assert said(await find(store, address="a/1")) == [b"3", b"1"]
    assert said(await find(store, id="mine")) == [b"3"]
    assert said(await find(store, id=str(Position(first.frame, 1)))) == [b"2"]
    assert said(await find(store, id="nobody")) == said(await find(store, key="x")) == []


async def test_an_id_that_looks_like_a_position_is_found_by_the_index(store):
    await append(store, frame(Message("a", b"0", id="other")))
    await append(store, frame(Message("a", b"1", id="0.0")))
    assert said(await find(store, id="0.0")) == [b"1"]
    assert said(await find(store, id="ffffff.0")) == []


async def test_the_bytes_of_a_frame_in_a_body_are_no_message(store):
    """Or whoever may publish anywhere could have others read what it may not publish, at a position that it names."""
    inner = frame(Message("secret/plans", b"forged"))
    forged = inner.header(log_offset=10_000, epoch=1, stored_at_ms=1) + inner.rows + inner.payload
    outer = frame(Message("a", forged))
    at = HEADER.size + len(outer.rows) + bytes(outer.payload).index(forged)
    forged = inner.header(log_offset=at, epoch=1, stored_at_ms=1) + inner.rows + inner.payload
    first = await append(store, frame(Message("a", forged)))
    assert said(await find(store, id=str(Position(at, 0)))) == []
    assert said(await find(store, id=str(Position(first.frame, 0)))) == [forged]


async def test_a_collision_is_told_apart(store):
    await append(store, frame(Message("a", b"1", device="d", id="i"), hashes=(hash64("k"), hash64("x"), hash64("j"))))
    for asked in ({"key": "k"}, {"address": "x"}, {"id": "j"}):
        assert said(await find(store, **asked)) == []


async def test_pages_times_conditions_and_expiry(store):
    for n in range(10):
        expires = 5 if n == 3 else None
        await append(store, frame(Message("a", b"%d" % n, device="d", qos=n % 2, expires_at_ms=expires)))
    found, pages, after = [], 0, None
    while True:
        page = await find(store, key="d", limit=3, after=after)
        found, pages, after = found + said(page), pages + 1, page.after
        if after is None:
            break
    assert (found, pages) == ([b"%d" % n for n in range(9, -1, -1)], 4)
    assert said(await find(store, key="d", now_ms=6, limit=99)) == [b"%d" % n for n in range(9, -1, -1) if n != 3]
    assert said(await find(store, key="d", where="qos = 1")) == [b"9", b"7", b"5", b"3", b"1"]
    times = [
        frame_.header.stored_at_ms for frame_ in (await store.log.scan(Position(0, 0), None, max_bytes=1 << 20))[0]
    ]
    assert said(await find(store, key="d", from_ms=times[2], until_ms=times[5])) == [b"4", b"3", b"2"]


async def test_little_that_passes_ends_an_answer_that_goes_on(store):
    count = LOOKED_MAX + 7
    for start in range(0, count, 1000):
        size = min(1000, count - start)
        await append(store, frame(*(Message("a", b"%d" % (start + n), device="d") for n in range(size))))
    page = await find(store, key="d", where="qos = 0")
    assert (said(page), page.after is not None) == ([], True)
    assert (await find(store, key="d", where="qos = 0", after=page.after)).after is None


async def test_what_may_not_be_read_is_passed_over_before_anything_is_counted(store, monkeypatch):
    seal = CursorSeal(b"s" * 32)
    for n in range(6):
        await append(store, frame(Message("hidden" if n % 2 else "open", b"%d" % n, device="d")))
    asked = {"key": "d", "readable": lambda address: address == "open", "cursors": seal}
    page = await find_messages_with(store, limit=2, **asked)
    assert said(page) == [b"4", b"2"]
    assert said(await find_messages_with(store, limit=2, after=page.after, **asked)) == [b"0"]
    monkeypatch.setattr(find_module, "LOOKED_MAX", 3)
    page = await find_messages_with(store, where="qos = 2", **asked)
    assert (said(page), page.after is not None) == ([], True), "three may be read, and as many are looked at"
    monkeypatch.setattr(find_module, "PASSED_OVER_MAX", 2)
    page = await find_messages_with(store, **asked)
    assert (said(page), page.after is not None) == ([b"4"], True), "work is bounded, whatever is hidden"
    assert said(await find_messages_with(store, after=page.after, **asked)) == [b"2", b"0"]


async def find_messages_with(store, *, readable, cursors, **asked):
    return await find_messages(
        store,
        FindMessages(**asked),
        now_ms=0,
        indexed=lambda _kind, _text: True,
        readable=readable,
        cursors=cursors,
    )


async def test_what_is_lost_is_an_error_that_says_how_to_go_on(store, monkeypatch):
    hurt = await append(store, frame(Message("a", b"1", device="d")))
    await append(store, frame(Message("a", b"2", device="d")))
    junk = UnplacedFrame.build(ROW.pack(16, 0, 4, BOTH, hash64("d"), 1, 0, 0), b"junk")
    await append(store, junk)
    await append(store, frame(Message("a", b"0", device="e")))
    real = store.log.read

    async def read(position):
        if position.frame == hurt.frame:
            raise CorruptFrame(hurt.frame, "body checksum")
        return await real(position)

    monkeypatch.setattr(store.log, "read", read)
    first = await find(store, key="d")  # the newest first: what is sound in front of it
    assert said(first) == [b"2"]
    with pytest.raises(Refusal, match=r"is lost.*after=") as caught:
        await find(store, key="d", after=first.after)
    assert caught.value.cause is Cause.DAMAGED
    behind = str(caught.value).rpartition("after=")[2]
    assert said(await find(store, key="d", after=behind)) == []
    with pytest.raises(Refusal, match=f"the message at {Position(hurt.frame, 0)} is lost") as caught:
        await find(store, id=str(Position(hurt.frame, 0)))
    assert caught.value.cause is Cause.DAMAGED
    # A reader without all rights is not told of messages that may be another's.
    seen = await find_messages(
        store,
        FindMessages(key="d"),
        now_ms=0,
        indexed=lambda _kind, _text: True,
        readable=lambda address: address == "a",
    )
    assert said(seen) == [b"2"]


async def test_refused(store):
    for asked in ({}, {"key": "a", "id": "b"}, {"key": ""}):
        with pytest.raises(Refusal) as caught:
            await find(store, **asked)
        assert caught.value.cause is Cause.MALFORMED
    with pytest.raises(Refusal) as caught:
        await find(store, key="a", where="qos >")
    assert "column 6" in str(caught.value)
    with pytest.raises(Refusal) as caught:
        await find(store, key="a", indexed=lambda kind, text: (kind, text) != (IndexKind.KEY, "a"))
    assert caught.value.cause is Cause.PRECONDITION


# ---- the router's flags and the directory


class TopicsController:
    def __init__(self, **configs):
        self.found = {
            name: Topic(name=name, queues=(16 + n,), config=config) for n, (name, config) in enumerate(configs.items())
        }

    def topic(self, name):
        return self.found.get(name)

    def topics(self):
        return list(self.found.values())

    def watch(self, listener):
        return lambda: None


def test_rows_are_flagged_as_their_topic_says():
    controller = TopicsController(
        plain={}, keys={"index": ["key"]}, both={"index": ["address", "key", "later"]}, none={"index": []}
    )
    router = Router(controller, index=["address"])
    flags = {name: router.resolve(f"{name}/x").row_flags for name in controller.found}
    assert flags == {"plain": ROW_INDEX_ADDRESS, "keys": ROW_INDEX_KEY, "both": BOTH, "none": 0}
    assert router.indexed(IndexKind.ADDRESS, "plain/y")
    assert not router.indexed(IndexKind.ADDRESS, "none/y")
    assert router.indexed(IndexKind.KEY, "any")
    assert not Router(TopicsController(plain={})).indexed(IndexKind.KEY, "any")
    assert Router(TopicsController(plain={})).indexed(IndexKind.ID, "any")


def test_messages_are_found_by_key_before_there_is_a_topic():
    assert Router(TopicsController(), index=("key",)).indexed(IndexKind.KEY, "any")
    assert not Router(TopicsController()).indexed(IndexKind.KEY, "any")


async def test_addresses_that_the_router_meets_are_listed(store):
    controller, tasks = TopicsController(t={}, gone={}), []
    router = Router(controller)
    directory = Directory(store, spawn=lambda work: tasks.append(asyncio.ensure_future(work)))
    router.met = directory.offer
    router.set_exchanges(["$amqp/x"])
    controller.found["$amqp"] = Topic(name="$amqp", queues=(90,), config={})
    for address in ("t/b", "t/a", "t/a", "gone/1", "$amqp/x/k", "t/" + "a" * 300):
        router.resolve(address)
    await asyncio.gather(*tasks)
    assert len(tasks) == 1
    end = store.log.confirmed
    directory.offer("t/a")
    await asyncio.gather(*tasks)
    assert store.log.confirmed == end
    asked = {"router": router, "controller": controller}
    assert await directory.list("", 10, **asked) == ["gone/1", "t/a", "t/b"]
    del controller.found["gone"]
    assert await directory.list("", 10, **asked) == ["t/a", "t/b"]
    assert await directory.list("t/", 1, **asked) == ["t/a"]
    assert await directory.list("t/", 1, after="t/a", **asked) == ["t/b"]
    assert await directory.list("t/", 1, after="t/b", **asked) == []


async def test_a_list_has_the_addresses_that_were_offered_before_it(store):
    controller = TopicsController(t={})
    directory = Directory(store, spawn=asyncio.ensure_future)
    asked = {"router": Router(controller), "controller": controller}
    for n in range(50):
        directory.offer(f"t/{n:02}")
        assert (await directory.list("t/", 100, **asked))[-1] == f"t/{n:02}"


async def test_a_list_does_not_wait_for_a_store_that_does_not_answer(store, monkeypatch):
    class Silent:
        addresses = store.log.addresses

        async def note_addresses(self, addresses):
            await asyncio.Event().wait()

    monkeypatch.setattr("gateway.publishing.routing.directory.SETTLE_S", 0.01)
    controller, tasks = TopicsController(t={}), []
    silent = SimpleNamespace(log=Silent())
    directory = Directory(silent, spawn=lambda work: tasks.append(asyncio.ensure_future(work)))
    directory.offer("t/a")
    assert await directory.list("t/", 100, router=Router(controller), controller=controller) == []
    monkeypatch.setattr("gateway.publishing.routing.directory.SETTLE_S", 3600.0)
    directory.offer("t/b")
    assert await directory.list("t/", 100, router=Router(controller), controller=controller) == []  # waits no more
    tasks[0].cancel()
    await asyncio.wait(tasks)


async def test_offers_are_bounded_and_outlive_a_store_that_refuses():
    class Refusing:
        async def note_addresses(self, addresses):
            raise StoreClosed("the store is shut down")

    tasks = []
    directory = Directory(SimpleNamespace(log=Refusing()), spawn=lambda work: tasks.append(asyncio.ensure_future(work)))
    for n in range(PENDING_MAX + 10):
        directory.offer(str(n))
    assert len(directory.pending) == PENDING_MAX
    await asyncio.gather(*tasks)
    directory.pending.clear()
    directory.offer("again")
    await asyncio.gather(*tasks)
    assert len(tasks) == 2
