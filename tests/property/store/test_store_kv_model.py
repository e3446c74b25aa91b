"""The key-value store against plain dictionaries, over crashes, restarts and rebuilds; and its watches against all."""

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from store.api.keys import EXISTS, Delete, Put, Transacted
from store.base.errors import NamespaceFull, RevisionConflict
from store.local import key_watch as watch
from store.local import keys as local_keys
from store.local.local import LocalStore
from store.recent import kv_feed as feed
from tests.support.process.examples import examples
from tests.support.store.model.machine import StoreMachine

NAMESPACES = ("", "n", "no")
KEYS = ("", "a", "a/1", "a/2", "b", "é")


class KeysAlone(StoreMachine):
    """A store of keys and values, and a clock: keys expire, namespaces have limits."""

    def __init__(self, directory: Path, seed: int):
        super().__init__(directory, seed)
        self.now_ms = 1_000

    def options(self):
        return {"now_ms": lambda: self.now_ms}

    def slot(self):
        """Returns a namespace, a key of it, and the revision that is expected of this one."""
        namespace, key = self.chance.choice(NAMESPACES), self.chance.choice(KEYS)
        actual = self.model.kv.revision(namespace, key, self.now_ms)
        return namespace, key, self.chance.choice([None, None, actual, EXISTS, 0, 7])

    def expiry(self):
        return self.chance.choice([None, None, self.now_ms + self.chance.randint(0, 50)])

    # ---- steps

    async def put(self):
        namespace, key, expected = self.slot()
        value, expires_at_ms = self.chance.randbytes(self.chance.randrange(20)), self.expiry()
        newest = max((change.revision or 0 for change in self.model.kv.changes), default=0)
        found = await outcome(
            self.store.keys.put(
                key, value, expected_revision=expected, namespace=namespace, expires_at_ms=expires_at_ms
            )
        )
        done = self.model.kv.put(
            namespace,
            key,
            value,
            expected=expected,
            expires_at_ms=expires_at_ms or 0,
            revision=found if isinstance(found, int) else None,
            now_ms=self.now_ms,
        )
        assert repr(found) == repr(done)
        assert not isinstance(found, int) or found > newest

    async def delete(self):
        namespace, key, expected = self.slot()
        found = await outcome(self.store.keys.delete(key, expected_revision=expected, namespace=namespace))
        done = self.model.kv.delete(namespace, key, expected=expected, revision=None, now_ms=self.now_ms)
        assert repr(found) == repr(done)

    async def transact(self):
        namespace, kv = self.chance.choice(NAMESPACES), self.model.kv
        compares = {
            key: kv.revision(namespace, key, self.now_ms) for key in self.chance.sample(KEYS, self.chance.randint(0, 3))
        }
        if compares and self.chance.random() < 0.3:
            compares[self.chance.choice(list(compares))] += 1
        operations = []
        for key in self.chance.sample(KEYS, self.chance.randint(0, 4)):
            value = self.chance.randbytes(5)
            operations.append(self.chance.choice([Put(key, value, self.expiry()), Delete(key)]))
        found = await outcome(self.store.keys.transact(compares, operations, namespace=namespace))
        if isinstance(found, Transacted):
            found = Transacted(found.revision, tuple(found.existed))
        done = kv.transact(
            namespace,
            compares.items(),
            [(one.key, getattr(one, "value", None), getattr(one, "expires_at_ms", None) or 0) for one in operations],
            revision=found.revision if isinstance(found, Transacted) else None,
            now_ms=self.now_ms,
        )
        assert repr(found) == repr(done)

    async def limit(self):
        namespace = self.chance.choice(NAMESPACES)
        keys_max, size_bytes_max = self.chance.choice([(0, 0), (3, 0), (0, 40), (4, 50)])
        await self.store.keys.limit(namespace, keys_max=keys_max, size_bytes_max=size_bytes_max)
        self.model.kv.limit(namespace, keys_max, size_bytes_max)

    async def wait(self):
        self.now_ms += self.chance.randint(1, 30)

    async def sweep(self):
        await self.store.keys.sweep(self.now_ms)
        self.model.kv.expire(self.model.kv.expired(self.now_ms), revision=None, now_ms=self.now_ms)

    # ---- checks

    async def check(self):
        keys, namespace = self.store.keys, self.chance.choice(NAMESPACES)
        for key in KEYS:
            assert await keys.get(key, namespace=namespace) == self.model.kv.entry(namespace, key, self.now_ms)
        start, end, limit = self.chance.choice(KEYS), self.chance.choice([None, *KEYS]), self.chance.randint(1, 4)
        at = await keys.hold() if self.chance.random() < 0.5 else None
        found, after, more = [], None, True
        while more:
            page = await keys.range(start, end, namespace=namespace, after=after, limit=limit, at_revision=at)
            found += page.entries
            more, after = page.more, page.entries[-1].key if page.entries else None
        assert found == self.model.kv.entries(namespace, self.now_ms, start, end)
        assert await keys.count(start, end, namespace=namespace) == len(found)
        assert await keys.namespaces() == self.model.kv.namespaces()
        await self.check_history(namespace)
        if at is not None:
            keys.release(at)

    async def check_history(self, namespace):
        """Compares what a watch tells, from some change on, with what was done."""
        done = [change for change in self.model.kv.changes if change.namespace == namespace]
        found = await self.watched(namespace, 0, len(done))
        assert [change.revision for change in found] == sorted(change.revision for change in found)
        told = [(one.kind, one.key, one.value, one.expires_at_ms or 0) for one in found]
        expected = [(one.kind, one.key, one.value, one.expires_at_ms) for one in done]
        assert sorted(told) == sorted(expected)
        assert _without_expired(told) == _without_expired(expected)
        if found:
            at = self.chance.choice(found).revision
            rest = [one for one in found if one.revision >= at]
            assert await self.watched(namespace, at, len(rest)) == rest

    async def watched(self, namespace, start, count):
        """Returns the changes of a watch from a revision on, once they are so many."""
        watching = self.store.keys.watch(namespace=namespace, from_revision=start)
        found = []
        async with asyncio.timeout(20):
            while len(found) < count:
                found += (await anext(watching)).changes
        await watching.aclose()
        return found


async def outcome(call):
    """Returns what a call answers, a refusal as an object."""
    try:
        return await call
    except (RevisionConflict, NamespaceFull) as error:
        return error


def _without_expired(changes):
    """Returns the changes without expiries, because one sweep removes keys in an order of its own."""
    return [change for change in changes if change[0] != "expire"]


async def never(_store, _now_ms):
    """Removes nothing, as if no key were due."""


STEPS = ["put", "transact"] * 4 + ["delete", "wait", "sweep"] * 2 + ["limit", "restart", "crash"]


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 1 << 32), st.lists(st.sampled_from(STEPS), min_size=5, max_size=30))
def test_keys_and_values_are_their_model_over_crashes(seed, steps):
    with (
        TemporaryDirectory() as name,
        patch.object(local_keys, "SWEEP_COUNT_MAX", 3),
        patch.object(local_keys.LocalKeys, "tick", never),  # sweeping is a step of its own
    ):
        machine = KeysAlone(Path(name), seed)
        asyncio.run(machine.run(steps))
        machine.check_rebuild()


class Watcher:
    """Reads at its own pace, now and then from the beginning of what it has not seen."""

    def __init__(self, chance, start, end):
        self.chance, self.range = chance, (start, end)
        self.next = 0
        self.found = []

    async def run(self, store):
        while True:
            watching = store.keys.watch(*self.range, from_revision=self.next)
            try:
                async for changes in watching:
                    self.found += changes.changes
                    self.next = changes.next
                    for _ in range(self.chance.choice([0, 0, 1, 20])):
                        await asyncio.sleep(0)
                    if self.chance.random() < 0.1:
                        break
            finally:
                await watching.aclose()


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 1 << 32))
def test_every_change_is_seen_once_and_in_order(seed):
    chance = random.Random(seed)
    watchers = [Watcher(chance, *chance.choice([("", None), ("2", "5"), ("7", None)])) for _ in range(4)]
    written = []

    async def write(store):
        for _ in range(30):
            key = str(chance.randrange(10))
            match chance.randrange(4):
                case 0:
                    outcome = await store.keys.transact({}, [Put(key, b"t"), Put(f"{key}-", b"t"), Delete(f"{key}+")])
                    written.extend([(outcome.revision, key), (outcome.revision, f"{key}-")])
                case 1:
                    with suppress(RevisionConflict):
                        written.append((await store.keys.put(key, b"c", expected_revision=0), key))
                case _:
                    written.append((await store.keys.put(key, b"p"), key))

    async def one_life(path):
        linger_s = chance.choice([0.0005, 3600])
        async with await LocalStore.open(path, linger_s=linger_s, segment_size_bytes=4000) as store:
            following = [asyncio.ensure_future(watcher.run(store)) for watcher in watchers]
            await asyncio.gather(*(write(store) for _ in range(3)))
            async with asyncio.timeout(30):
                while any(watcher.next <= max(written)[0] for watcher in watchers if watcher.range == ("", None)):
                    await asyncio.sleep(0)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)

    with (
        TemporaryDirectory() as name,
        patch.multiple(feed, FEED_COUNT_MAX=chance.choice([2, 10, 1000])),
        patch.multiple(
            watch, HISTORY_BYTES=chance.choice([1, 500, 1 << 20]), BATCH_COUNT_MAX=chance.choice([1, 5, 100])
        ),
    ):
        for _ in range(2):
            asyncio.run(one_life(Path(name) / "data"))

        async def catch_up():
            async with await LocalStore.open(Path(name) / "data") as store:
                end = (await store.keys.transact({}, [Put("3~", b""), Put("8~", b"")])).revision
                for watcher in watchers:
                    watching = store.keys.watch(*watcher.range, from_revision=watcher.next)
                    async with asyncio.timeout(30):
                        while not watcher.found or watcher.found[-1].revision < end:
                            watcher.found += (await anext(watching)).changes
                    await watching.aclose()

        asyncio.run(catch_up())
    for watcher in watchers:
        start, end = watcher.range
        wanted = [(at, key) for at, key in sorted(written) if key >= start and (end is None or key < end)]
        assert [(one.revision, one.key) for one in watcher.found if "~" not in one.key] == wanted
