"""The name by which a proxy delivers a queue with a single active consumer: had by one at a time, and let go of."""

from types import SimpleNamespace

import pytest

from gateway.ownership.owners import OwnershipLost, Taken
from gateway.queues.consumers.single_active import PREFIX, SingleActive
from store.base.errors import AppendOutcomeUnknown, StoreUnreachable

pytestmark = pytest.mark.anyio

NAME = f"{PREFIX}q"


class Key:
    """The revision of a name's key, which a store keeps; 0: there is none."""

    def __init__(self):
        self.revision, self.newest, self.ours, self.failures = 0, 0, False, []

    def put(self, *, ours):
        self.newest += 1
        self.revision, self.ours = self.newest, ours

    async def release(self, revision):
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, StoreUnreachable):
            raise failure
        if self.revision != revision:
            raise OwnershipLost(NAME)
        self.revision = 0
        if failure is not None:
            raise failure


class Owners:
    """One of several proxies."""

    alone = False

    def __init__(self, key):
        self.key = key

    def serve(self, prefix, listener):
        pass

    async def take(self, name, *, wait):
        assert (name, wait) == (NAME, False)
        if self.key.revision and not self.key.ours:
            raise Taken(name)
        if not self.key.revision:
            self.key.put(ours=True)
        revision = self.key.revision
        return SimpleNamespace(release=lambda: self.key.release(revision))


def queue_of(number):
    pump = SimpleNamespace(active=False, consumers=[SimpleNamespace(allowed=True)], wake=lambda: None)
    rules, definition = SimpleNamespace(single_active=True), SimpleNamespace(name="q")
    return SimpleNamespace(number=number, pump=pump, rules=rules, definition=definition)


@pytest.fixture
def key():
    return Key()


@pytest.fixture
async def active(key):
    """Returns a proxy that delivers queue 1, and that queue."""
    single, queue = SingleActive(Owners(key)), queue_of(1)
    assert await single.look_after(queue) is None
    assert queue.pump.active
    return single, queue


async def test_a_name_is_let_go_of_until_that_is_successful(key, active):
    single, queue = active
    queue.pump.consumers.clear()
    key.failures = [StoreUnreachable("")]
    with pytest.raises(StoreUnreachable):
        await single.look_after(queue)
    assert key.revision
    await single.look_after(queue)
    assert not key.revision
    assert not single.leave(1)


async def test_a_name_whose_release_was_done_without_an_answer_is_another_proxy_s(key, active):
    single, queue = active
    consumer = queue.pump.consumers.pop()
    key.failures = [AppendOutcomeUnknown("")]
    with pytest.raises(AppendOutcomeUnknown):
        await single.look_after(queue)
    key.put(ours=False)
    queue.pump.consumers.append(consumer)
    assert await single.look_after(queue) is not None, "it asks again"
    assert not queue.pump.active


async def test_a_lost_name_of_a_deleted_queue_is_forgotten(key, active):
    single, _ = active
    key.put(ours=False)
    assert single.leave(1)
    await single.forget(1)
    assert not single.leave(1)
    assert key.revision


@pytest.mark.parametrize("failures", [[], [StoreUnreachable("")], [AppendOutcomeUnknown("")]])
async def test_the_next_queue_of_a_name_has_it_for_itself(key, active, failures):
    """Both had the same: when the first one let go of it, another proxy became active beside the second one."""
    single, _ = active
    key.failures = failures
    assert single.leave(1)
    if failures:
        with pytest.raises(type(failures[0])):
            await single.forget(1)
    following = queue_of(2)
    assert await single.look_after(following) is None
    await single.forget(1)
    assert following.pump.active
    assert (key.revision, key.ours) == (2, True)
